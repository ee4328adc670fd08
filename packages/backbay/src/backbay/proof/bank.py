"""Goldens for several sets of inputs: what was right once may have been kept, and not computed.

Whoever is judged is given the inputs of a set when it is called with them, and nothing that they
were drawn from.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from backbay.causes import one_line
from backbay.errors import ProofImpossible
from backbay.proof.copying import copied, copied_together, is_expanded
from backbay.proof.golden import FORMAT, Golden
from backbay.proof.making import make_golden, make_golden_alike
from backbay.proof.outcome import outcome_of, unchanged
from backbay.proof.sequence import in_a_row
from backbay.proof.state import Attributes, attributes_kept
from backbay.proof.step import Step
from backbay.proof.tree import leaves, mapped
from backbay.workloads.workload import Workload

_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_LOOKED_AT = 1 << 16
_FEW_VALUES = 2
SHRINK = 0.1
"""Floating-point inputs are scaled by up to this share as well: what only looks at their sum sees
others, and a value between 0 and 1 stays there."""
_UNVARIED = (
    "no other inputs could be made of the workload's own: a backend that keeps what it computed "
    "once can't be told from one that computes"
)

Inputs = tuple[torch.Tensor, ...]
"""Of one set: the tensor inputs of a step, in their order."""


@dataclass(frozen=True, kw_only=True)
class Bank:
    """One golden for each set of inputs; the first is of the workload's own."""

    goldens: tuple[Golden, ...]
    """Of all but the first, large tensors are kept in part; see `evidence.picked`."""
    inputs: tuple[Inputs, ...]
    seeds: tuple[int, ...]
    """From which the parts that are kept were drawn, set by set; the first set has all of them."""
    row: Golden | None = None
    """Of two calls in a row, of a model that changes its state or draws random numbers."""
    row_sets: tuple[int, ...] = ()
    """Which sets of inputs they have."""
    state_matters: bool = False
    """Whether what a call gives depends on the state that earlier ones left."""
    notes: tuple[str, ...] = ()

    def golden_of(self, inputs: int, *, picked: int | None, row: bool) -> Golden:
        """Return what a call is held against.

        Args:
            inputs: which set it was called with.
            picked: what the elements were drawn from that it handed on; None: it handed on all.
            row: whether it was two calls in a row.
        """
        golden = self.row if row else self.goldens[inputs]
        assert golden is not None, "calls in a row are judged where there is a golden of them"
        # Of all sets but the first, no more than that part is kept.
        return golden if picked is None or inputs else golden.picked(picked)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a file that `load` reads, in another process."""
        content = {
            "format": FORMAT,
            "goldens": [x.content() for x in self.goldens],
            "inputs": [list(x) for x in self.inputs],
            "seeds": list(self.seeds),
            "row": None if self.row is None else self.row.content(),
            "row_sets": list(self.row_sets),
            "state_matters": self.state_matters,
            "notes": list(self.notes),
        }
        torch.save(content, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Bank":
        """Read what `save` wrote. Tensors stay on disk until they are compared."""
        content: dict[str, Any] = torch.load(
            str(path), mmap=True, map_location="cpu", weights_only=True
        )
        return cls(
            goldens=tuple(Golden.of_content(x) for x in content["goldens"]),
            inputs=tuple(map(tuple, content["inputs"])),
            seeds=tuple(content["seeds"]),
            row=None if content["row"] is None else Golden.of_content(content["row"]),
            row_sets=tuple(content["row_sets"]),
            state_matters=content["state_matters"],
            notes=tuple(content["notes"]),
        )


def make_bank(workload: Workload, *, train: bool, seed: int, seeds: Sequence[int]) -> Bank:
    """Make the goldens of a workload's own inputs, and of others that are drawn.

    Args:
        workload: what to run. It is left as it was.
        train: whether to run backward as well.
        seed: of the random state that each run starts from.
        seeds: one for each further set of inputs, and of the parts of its golden that are kept.

    Raises:
        ProofImpossible: no float64 truth can be made of the workload's own inputs.
    """
    _check_classes(dict(Step(workload, train=train).inputs))
    golden = make_golden(workload, train=train, seed=seed)
    _check_classes(golden.eager.tensors)
    workload = golden.at(workload)
    goldens, inputs, used, notes = [golden], [inputs_of(workload, train=train)], [0], list[str]()
    make = _first_that_works(workload, golden, train=train, seed=seed)
    for drawn in seeds:
        made = make(drawn)
        if made is None:
            notes.append(_UNVARIED)
            break
        other, further = made
        goldens.append(further.picked(drawn))
        inputs.append(inputs_of(other, train=train))
        used.append(drawn)
    row, row_sets = None, (0, 1 if len(inputs) > 2 else 0)  # noqa: PLR2004 (the last is a secret)
    if golden.eager.changed or golden.draws_random:
        try:
            calls = in_a_row(workload, [inputs[i] for i in row_sets])
            row = make_golden(calls, train=train, seed=seed)
        except Exception as error:  # noqa: BLE001 (what one call takes, two may not)
            notes.append(f"two calls in a row could not be judged: {one_line(error)}")
        if row is not None and row.reduced:
            row = None
            notes.append("two calls in a row could not be judged: their float64 truth does not fit")
    return Bank(
        goldens=tuple(goldens),
        inputs=tuple(inputs),
        seeds=tuple(used),
        row=row,
        row_sets=row_sets if row is not None else (),
        state_matters=_state_matters(workload, golden, train=train, seed=seed),
        notes=tuple(notes),
    )


def _check_classes(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ProofImpossible where one is of a class that only its own code can read again."""
    for name, value in tensors.items():
        if type(value) not in _CLASSES:
            kind = type(value).__qualname__
            raise ProofImpossible(
                f"{name} is a {kind}, a subclass of torch.Tensor that no other process knows: "
                "prove a model that takes and returns plain tensors, and makes a "
                f"{kind} of them inside"
            )


def _state_matters(workload: Workload, golden: Golden, *, train: bool, seed: int) -> bool:
    """Whether eager gives something else where an earlier call has changed its state."""
    if golden.draws_random:
        return False
    step = Step(workload, train=train, seed=seed)
    if any(name in golden.eager.changed for name, _ in step.inputs):
        return True
    attributes = Attributes(workload.model)
    with unchanged(step), attributes_kept(workload.model):
        step(workload.model)
        if not golden.eager.changed and not attributes.changed:
            return False
        later = outcome_of(workload.model, step, seed=seed)
    return not (
        _same(golden.eager.tensors, later.tensors)
        and _same(golden.eager.gradients, later.gradients)
    )


def _same(one: Mapping[str, torch.Tensor | None], other: Mapping[str, torch.Tensor | None]) -> bool:
    return one.keys() == other.keys() and all(
        x is y if x is None or y is None else torch.equal(x, y)
        for x, y in ((one[name], other[name]) for name in one)
    )


def inputs_of(workload: Workload, *, train: bool) -> Inputs:
    """Return copies of the tensor inputs that a step has, in their order."""
    return tuple(copied(x) for _, x in Step(workload, train=train).inputs)


def elsewhere(workload: Workload) -> Workload:
    """Return the workload with the same inputs at other addresses."""
    return _with(workload, copied)


def varied(workload: Workload, seed: int, *, integers: bool) -> Workload:
    """Return the workload with other values of its inputs, of the same range, drawn from a seed.

    The values of each tensor come in another order; those in floating point are smaller as well.
    What has one element or two values, as a mask has, stays, and so does what is expanded, or is
    memory of another input as well.

    Args:
        workload: whose inputs they are like.
        seed: what they are drawn from.
        integers: whether integers are among what varies.
    """
    generator = torch.Generator().manual_seed(seed)

    def other(value: torch.Tensor) -> torch.Tensor:
        made = copied(value)
        if not _varies(value, integers=integers):
            return made
        order = torch.randperm(value.numel(), generator=generator).to(value.device)
        values = value.detach().reshape(-1)[order].reshape(value.shape)
        if value.is_floating_point() or value.is_complex():
            values = values * (1.0 - SHRINK * float(torch.rand((), generator=generator)))
        return made.copy_(values)

    return _with(workload, other)


def _first_that_works(
    workload: Workload, golden: Golden, *, train: bool, seed: int
) -> Callable[[int], tuple[Workload, Golden] | None]:
    """Return what draws inputs and makes their golden; integers may be what a model can't take."""
    ways = [True, False]

    def make(drawn: int) -> tuple[Workload, Golden] | None:
        while ways:
            try:
                other = varied(workload, drawn, integers=ways[0])
                if not _alike(workload, other):
                    return other, make_golden_alike(golden, other, train=train, seed=seed)
            except Exception:  # noqa: BLE001, S110 (whatever the model raises for such inputs)
                pass
            ways.pop(0)
        return None

    return make


def _varies(value: torch.Tensor, *, integers: bool) -> bool:
    floating = value.is_floating_point() or value.is_complex()
    if value.layout != torch.strided or value.dtype == torch.bool or not (floating or integers):
        return False
    if is_expanded(value):
        return False
    some = value.detach().reshape(-1)[:_LOOKED_AT]
    return bool(((some != some[:1]).sum() > 0) and _distinct(some) > _FEW_VALUES)


def _distinct(values: torch.Tensor) -> int:
    real = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    wide = real.to(torch.float64) if real.is_floating_point() else real.to(torch.int64)
    return int(torch.unique(wide).numel())


def _alike(one: Workload, other: Workload) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(workload: Workload) -> Iterator[torch.Tensor]:
    yield from (x for _, x in Step(workload, train=False).inputs)


def _with(workload: Workload, change: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
    """Return the workload with other input tensors.

    One that is given twice stays one. Those that are partly the same memory stay so, with the
    values that they have.
    """
    found = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    made = copied_together([x for x in found if isinstance(x, torch.Tensor)])

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = change(leaf)
        return made[id(leaf)].requires_grad_(leaf.requires_grad)

    args, kwargs = mapped(changed, (workload.args, dict(workload.kwargs)))
    return dataclasses.replace(workload, args=args, kwargs=kwargs, reduced=None)
