"""Draws a program from a seed: the same in every process, on every machine.

What is drawn depends on the seed, the grammar, and on what torch says of shapes, strides and memory
on ``meta``; never on a number that a kernel computed.
"""

import random
import warnings
from collections.abc import Iterator, Sequence

import torch

from backbay_conformance.fuzz.grammar import KINDS, Chooser
from backbay_conformance.fuzz.program import GRAMMAR, Input, Program, without_unused
from backbay_conformance.fuzz.scope import EXACT, Facts, Scope, Value

ATTEMPTS = 200
"""Draws until one is accepted; one in some two is."""
_STATEMENTS = range(5, 16)
_PROPOSALS = 200
_OUTPUTS = 6
_SIZES = ((6,), (4,), (7,), (6, 9), (4, 7, 6), (3, 8), (5, 2, 11), (2, 1, 5))


class NoProgramError(Exception):
    """A seed whose every attempt was refused; none is known."""


def program(seed: int) -> Program:
    """Draw the program of a seed.

    Raises:
        NoProgramError: every attempt was refused.
    """
    for attempt in range(ATTEMPTS):
        found = _Drawing(random.Random(f"{GRAMMAR}/{seed}/{attempt}"), seed).program()  # noqa: S311
        if found is not None and accepted(found):
            return found
    raise NoProgramError(f"no attempt at seed {seed} gave a program that eager takes")


class _Drawing:
    """One attempt."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng = rng
        self._seed = seed
        self._train = rng.random() < 0.35  # noqa: PLR2004
        self._sizes = _SIZES[rng.randrange(len(_SIZES))]
        self._dynamic = rng.choice((None, True, False) if len(self._sizes) == 1 else (None, True))
        reads_bits = not self._train and rng.random() < 0.25  # noqa: PLR2004
        self._floats = self._drawn_floats(low=not reads_bits)
        self._reads_bits = reads_bits
        self._scope = Scope(self._sizes, train=self._train)
        self._inputs: list[Input] = []
        self._names = 0

    def program(self) -> Program | None:
        with torch.set_grad_enabled(self._train):
            for made in self._drawn_inputs():
                if not self._give(*made):
                    return None
            self._add_statements()
        if not self._scope.statements:
            return None
        outputs = self._drawn_outputs()
        program = Program(
            seed=self._seed,
            inputs=tuple(self._inputs),
            statements=tuple(self._scope.statements),
            outputs=outputs,
            sizes=self._sizes,
            dynamic=self._dynamic,
            train=self._train,
            dtypes=tuple(sorted({str(x.dtype).removeprefix("torch.") for x in self._scope.values})),
            widens=not self._reads_bits,
        )
        return without_unused(program)

    def _drawn_floats(self, *, low: bool) -> tuple[torch.dtype, ...]:
        lows = (torch.bfloat16, torch.float16)
        if low and self._rng.random() < 0.2:  # noqa: PLR2004
            return (torch.float32, lows[self._rng.randrange(2)])
        if self._rng.random() < 0.3:  # noqa: PLR2004
            return (torch.float32, torch.float64)
        return (torch.float32,)

    def _drawn_inputs(self) -> Iterator[tuple[Input, Facts]]:
        rng = self._rng
        shapes = [self._shape() for _ in range(2)]
        for _ in range(rng.randrange(1, 4)):
            yield self._float_input(shapes[rng.randrange(2)])
        if rng.random() < 0.5:  # noqa: PLR2004
            yield self._whole_input(shapes[rng.randrange(2)])
        if rng.random() < 0.3:  # noqa: PLR2004
            yield self._index_input()
        if rng.random() < 0.25:  # noqa: PLR2004
            yield self._mask_input(shapes[rng.randrange(2)])
        if rng.random() < 0.25:  # noqa: PLR2004
            yield self._complex_input(shapes[rng.randrange(2)])
        if rng.random() < 0.35:  # noqa: PLR2004
            yield from self._alias_input()
        if rng.random() < 0.25:  # noqa: PLR2004
            yield self._buffer()
        if self._train and rng.random() < 0.4:  # noqa: PLR2004
            yield self._parameter()

    def _shape(self) -> str:
        forms = ("n, 4", "n, 4", "n, n", "4, n", "n", "n, 2, 3", "2, n, 4", "n, 1")
        return forms[self._rng.randrange(len(forms))]

    def _name(self) -> str:
        self._names += 1
        return f"x{self._names - 1}"

    def _float_input(self, shape: str) -> tuple[Input, Facts]:
        dtype = self._floats[self._rng.randrange(len(self._floats))]
        cast = "" if dtype == torch.float32 else f".to({dtype})"
        count = "*".join(f"({x.strip()})" for x in shape.split(","))
        if self._rng.random() < 0.25 and dtype in {torch.float32, torch.float64}:  # noqa: PLR2004
            made = f"(torch.randperm({count}) / 64 - 1).reshape({shape}){cast}"
            return self._input(made, Facts(bound=4, exact=True, distinct=True))
        made = f"(torch.rand({shape}) * 2 - 1){cast}"
        turned = self._rng.random()
        if turned < 0.15 and "," in shape:  # noqa: PLR2004
            made += ".transpose(0, 1)"
        elif turned < 0.25 and not self._train:  # noqa: PLR2004
            made = f"(torch.rand({shape}, 2) * 2 - 1){cast}[..., 1]"
        return self._input(made, EXACT)

    def _whole_input(self, shape: str) -> tuple[Input, Facts]:
        dtype, low = self._rng.choice((("int64", -9), ("int32", -9), ("uint8", 0), ("int64", -9)))
        made = f"torch.randint({low}, 10, ({shape},), dtype=torch.{dtype})"
        return self._input(made, Facts(bound=9, exact=True, positive=low == 0))

    def _index_input(self) -> tuple[Input, Facts]:
        below = self._sizes
        facts = Facts(bound=max(below), exact=True, distinct=True, below=below, positive=True)
        made = self._rng.choice(("torch.randperm(n)", "torch.randperm(n)[: (n + 1) // 2]"))
        return self._input(made, facts)

    def _mask_input(self, shape: str) -> tuple[Input, Facts]:
        return self._input(f"torch.rand({shape}) > 0.5", EXACT)

    def _complex_input(self, shape: str) -> tuple[Input, Facts]:
        return self._input(f"torch.complex(*(torch.rand(2, {shape}) * 2 - 1))", EXACT)

    def _input(self, expr: str, facts: Facts) -> tuple[Input, Facts]:
        return Input(name=self._name(), expr=expr), facts

    def _alias_input(self) -> Iterator[tuple[Input, Facts]]:
        """Yield an input again, or a view of one; leaves that are trained share no memory.

        Not as another dtype: AOTAutograd says that it does not take what is then written to.
        """
        bases = [x for x in self._scope.values if x.given and not x.meta.requires_grad]
        if not bases:
            return
        base = bases[self._rng.randrange(len(bases))]
        forms = ["", "[1:]", "[::2]", ".t()" if base.dim == 2 else "", "[..., 0]"]  # noqa: PLR2004
        expr = base.name + forms[self._rng.randrange(len(forms))]
        yield Input(name=self._name(), expr=expr, role="alias", of=base.name), base.facts

    def _buffer(self) -> tuple[Input, Facts]:
        expr = self._rng.choice(("torch.zeros(4)", "torch.ones(4, 4)", "torch.arange(4)"))
        return Input(name="self.b0", expr=expr, role="buffer"), Facts(bound=4, exact=True)

    def _parameter(self) -> tuple[Input, Facts]:
        expr = self._rng.choice(("torch.linspace(-1, 1, 4)", "torch.eye(4) * 0.5"))
        return Input(name="self.p0", expr=expr, role="parameter"), Facts()

    def _give(self, item: Input, facts: Facts) -> bool:
        self._inputs.append(item)
        leaf = self._train and item.role in {"input", "parameter"}
        return self._scope.give(item.name, item.expr, facts, leaf=leaf)

    def _add_statements(self) -> None:
        rng = self._rng
        chooser = Chooser(rng, self._scope, floats=self._floats, reads_bits=self._reads_bits)
        kinds = list(KINDS.values())
        # Each program has kinds of its own: a third of them much more often.
        weights = [x.weight * rng.choice((1, 1, 4)) for x in kinds]
        wanted = rng.choice(_STATEMENTS)
        for _ in range(_PROPOSALS):
            if len(self._scope.statements) >= wanted:
                return
            (drawn,) = rng.choices(kinds, weights)
            proposal = drawn.draw(chooser)
            if proposal is not None:
                self._scope.take(drawn.name, proposal)

    def _drawn_outputs(self) -> tuple[str, ...]:
        """Return what nothing else uses, and some of the rest, inputs among them."""
        values = [x for x in self._scope.values if not x.name.startswith("self.")]
        used = {x for s in self._scope.statements for x in s.args}
        ends = [x for x in values if not x.given and x.name not in used]
        rest = [x for x in values if x not in ends]
        self._rng.shuffle(ends)
        found: list[Value] = ends[: _OUTPUTS - 1]
        more = self._rng.randrange(0 if found else 1, 3) if rest else 0
        found += [rest[self._rng.randrange(len(rest))] for _ in range(more)]
        return tuple(x.name for x in found)


def accepted(program: Program) -> bool:
    """Whether a program runs on ``meta`` at every size, and has gradients if it is trained."""
    from backbay_conformance.fuzz.building import built, inputs_of  # noqa: PLC0415 (it is above)

    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        module = built(program)
        for n in program.sizes:
            try:
                args = inputs_of(program, n, torch.device("meta"))
                if not (_trains(module, args) if program.train else _runs(module, args)):
                    return False
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                return False
    return True


def _runs(module: torch.nn.Module, args: Sequence[torch.Tensor]) -> bool:
    with torch.no_grad():
        module(*args)
    return True


def _trains(module: torch.nn.Module, args: Sequence[torch.Tensor]) -> bool:
    leaves = [_leaf(x) for x in args]
    outputs = [x for x in module(*leaves) if x.requires_grad]
    if not outputs:
        return False
    torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    sources = [*leaves, *module.parameters()]
    return any(x.grad is not None for x in sources if x.is_leaf)


def _leaf(value: torch.Tensor) -> torch.Tensor:
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return value.detach().clone().requires_grad_()
