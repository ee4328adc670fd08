"""The values of a program while it is drawn, run on ``meta`` at each of its sizes.

``meta`` knows shapes, strides, dtypes, which tensors share memory and what autograd refuses, and
holds no numbers: what is drawn depends on no machine's arithmetic. What the numbers may be is kept
by hand, a few facts for each piece of memory.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from backbay_conformance.fuzz.program import Statement

LARGEST = 1000.0
"""Numbers stay below this: float16 holds them, and nothing overflows on its way."""
_ELEMENTS = 300
_DIMENSIONS = 4


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the numbers in a piece of memory."""

    bound: float = 1.0
    """Their largest size."""
    exact: bool = False
    """Whether honest arithmetic gives all of them alike to the last bit: then bits may be read,
    and numbers may be compared, cut or ordered."""
    distinct: bool = False
    """Whether no two are equal."""
    below: tuple[int, ...] = ()
    """Of what may serve as index, what its elements are below, at each size."""
    positive: bool = False
    """Whether none is negative."""


EXACT = Facts(exact=True)


def joined(*facts: Facts) -> Facts:
    """Return what is known of memory that holds numbers from several."""
    return Facts(
        bound=max((x.bound for x in facts), default=1.0),
        exact=all(x.exact for x in facts),
        positive=all(x.positive for x in facts),
    )


@dataclass(eq=False)
class Memory:
    """One piece of memory, shared by all that is a view of it."""

    facts: Facts
    keeps: list[Any]
    """Holds the storages, so that no other gets their place."""


@final
@dataclass(frozen=True, eq=False)
class Value:
    """A named tensor."""

    name: str
    metas: tuple[torch.Tensor, ...]
    """At each size."""
    memory: Memory
    given: bool = False
    """Whether it is an input, a buffer or a parameter."""
    overlapped: bool = False
    """Whether it is seen through a view two of whose elements share memory; functionalisation
    says that it does not take what is written there, though it be in part only."""

    @property
    def meta(self) -> torch.Tensor:
        """The tensor at the first size."""
        return self.metas[0]

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return self.meta.dtype

    @property
    def dim(self) -> int:
        """How many dimensions it has."""
        return self.meta.dim()

    @property
    def facts(self) -> Facts:
        """What is known of its numbers."""
        return self.memory.facts

    def least(self, dim: int) -> int:
        """Return a dimension's smallest size."""
        return min(x.shape[dim] for x in self.metas)

    @property
    def floating(self) -> bool:
        """Whether it holds real floating-point numbers."""
        return self.dtype.is_floating_point

    @property
    def full(self) -> bool:
        """Whether it holds float32 or float64."""
        return self.dtype in {torch.float32, torch.float64}

    @property
    def integral(self) -> bool:
        """Whether it holds integers."""
        return not (self.floating or self.meta.is_complex() or self.dtype == torch.bool)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """At each size."""
        return tuple(x.shape for x in self.metas)

    @property
    def writable(self) -> bool:
        """Whether writing into it means something: no two of its elements share memory."""
        return not self.overlapped


def overlaps(meta: torch.Tensor) -> bool:
    """Whether two elements may share memory."""
    reach = 0
    steps = sorted(zip(meta.stride(), meta.shape, strict=True))
    for stride, size in steps:
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A statement that the grammar would like."""

    expr: str
    args: tuple[Value, ...]
    facts: Facts | None = None
    """Of what it computes; None where it only moves what its first argument holds."""
    writes: Facts | None = None
    """Of what it writes into its first argument."""
    gives: int = 1
    """How many values; a statement that only writes gives none."""


class Scope:
    """All values so far."""

    def __init__(self, sizes: tuple[int, ...], *, train: bool) -> None:
        self.sizes = sizes
        self.train = train
        self.values: list[Value] = []
        self.statements: list[Statement] = []
        self._memories: dict[int, Memory] = {}
        self._names = 0

    def give(self, name: str, expr: str, facts: Facts, *, leaf: bool, fixed: bool = False) -> bool:
        """Take an input, a buffer or a parameter; ``expr`` makes it, from others where it views."""
        metas = []
        for place, n in enumerate(self.sizes):
            names = {x.name: x.metas[place] for x in self.values}
            metas.append(_evaluated(expr, {**names, "n": 4 if fixed else n}))
        if any(x is None for x in metas):
            return False
        if leaf and (metas[0].is_floating_point() or metas[0].is_complex()):
            metas = [x.detach().clone().requires_grad_() for x in metas if x is not None]
        self._bind(name, tuple(metas), facts, given=True)
        return True

    def take(self, kind: str, proposal: Proposal) -> bool:
        """Run a proposed statement at every size, and keep it if nothing refuses it."""
        for facts in (proposal.facts, proposal.writes):
            if facts is not None and not facts.bound <= LARGEST:
                return False
        if proposal.writes is not None:
            memory = proposal.args[0].memory
            outlives = any(x.given and x.memory is memory for x in self.values)
            if outlives and any(x.meta.requires_grad for x in proposal.args[1:]):
                return False  # what outlives the call would be part of one call's backward
        text = proposal.expr.format(*(f"a{i}" for i in range(len(proposal.args))))
        made = [self._run(text, proposal, place) for place in range(len(self.sizes))]
        if any(x is None for x in made):
            return False
        results = [list(x) for x in zip(*(x or () for x in made), strict=True)]
        if not all(_fits(x) for x in results):
            return False
        names = tuple(self._name() for _ in results)
        args = tuple(x.name for x in proposal.args)
        self.statements.append(Statement(kind=kind, expr=proposal.expr, args=args, targets=names))
        if proposal.writes is not None:
            memory = proposal.args[0].memory
            memory.facts = joined(memory.facts, proposal.writes)
        facts = proposal.args[0].facts if proposal.facts is None else proposal.facts
        for name, metas in zip(names, results, strict=True):
            self._bind(name, tuple(metas), facts, of=proposal.args)
        return True

    def _run(self, text: str, proposal: Proposal, place: int) -> list[torch.Tensor] | None:
        names = {f"a{i}": x.metas[place] for i, x in enumerate(proposal.args)}
        if proposal.gives == 0 and " = " in text:
            return [] if _executed(text, names) else None
        result = _evaluated(text, names)
        if result is None or proposal.gives == 0:
            return None if result is None else []
        return [result] if proposal.gives == 1 else list(result)

    def _bind(
        self,
        name: str,
        metas: tuple[torch.Tensor, ...],
        facts: Facts,
        *,
        given: bool = False,
        of: tuple[Value, ...] = (),
    ) -> None:
        storage = metas[0].untyped_storage()
        memory = self._memories.get(storage._cdata)  # noqa: SLF001 (there is no other identity)
        if memory is None:
            memory = Memory(facts=facts, keeps=[storage])
            self._memories[storage._cdata] = memory  # noqa: SLF001
        elif (dtype := metas[0].dtype) != memory.keeps[1][0].dtype:
            # Read as two dtypes, less is known of it.
            whole = not (dtype.is_floating_point or dtype.is_complex)
            bound = LARGEST if whole else memory.facts.bound
            memory.facts = Facts(bound=bound, exact=memory.facts.exact)
        overlapped = any(overlaps(x) for x in metas)
        if overlapped:
            memory.facts = dataclasses.replace(memory.facts, distinct=False)
        memory.keeps.append(metas)
        overlapped |= any(x.overlapped and x.memory is memory for x in of)
        self.values.append(
            Value(name=name, metas=metas, memory=memory, given=given, overlapped=overlapped)
        )

    def _name(self) -> str:
        self._names += 1
        return f"v{self._names - 1}"


def _fits(metas: list[Any]) -> bool:
    return all(
        isinstance(x, torch.Tensor) and x.numel() <= _ELEMENTS and x.dim() <= _DIMENSIONS
        for x in metas
    )


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        yield


_REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)
"""What torch raises for a statement that it does not take."""


def _evaluated(text: str, names: dict[str, Any]) -> Any:
    try:
        with _on_meta():
            return eval(text, {"torch": torch}, names)  # noqa: S307 (the grammar wrote it)
    except _REFUSALS:
        return None


def _executed(text: str, names: dict[str, Any]) -> bool:
    try:
        with _on_meta():
            exec(text, {"torch": torch}, names)  # noqa: S102 (likewise)
    except _REFUSALS:
        return False
    return True
