"""A random program while it is written: layers that passes want, and what disturbs them.

It becomes a `Program` of the conformance suite's fuzzer, which builds, prints and reduces it.
"""

import random
import types
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from backbay_conformance.fuzz.program import Input, Program, Role, Statement, without_unused

MODES = (
    'torch.autocast("cpu", torch.bfloat16)',
    "torch.no_grad()",
    "torch.enable_grad()",
)
_VIEWS = (
    "{0}.view_as({0})",
    "{0}[:]",
    "{0}[0]",
    "{0}[..., 1:]",
    "{0}.detach()",
    "{0}.transpose(-1, -2)",
    "{0}.flatten(1)",
    "{0}.unsqueeze(0)",
    "{0}.permute(*range(1, {0}.dim()), 0)",
    "{0}.expand(2, *{0}.shape)",
)
_WRITES = (
    "{0}.add_(0.25)",
    "{0}.mul_(0.75)",
    "{0}.clamp_(-0.5, 1)",
    "{0}[0].zero_()",
    "{0}.copy_({0} * 0.5)",
    "{0}.relu_()",
    "torch.add({0}, 0.25, out={0})",
    "torch.nn.functional.relu({0}, inplace=True)",
    "torch.nn.functional.silu({0}, inplace=True)",
)
_SAME = (
    "{0}.clone()",
    "{0}.contiguous()",
    "{0}.contiguous(memory_format=torch.channels_last) if {0}.dim() == 4 else {0}.clone()",
    "{0}.transpose(-1, -2).contiguous().transpose(-1, -2)",
    "{0}.view_as({0})",
    "{0} + 0",
    "{0} * 1.0",
    "{0}.reshape({0}.shape)",
    "{0}.expand_as({0})",
    "{0}.to(torch.float64).to({0}.dtype)",
    "{0}.to(torch.float32)",
    "{0}.to(torch.bfloat16)",
    "{0}.double()",
    "torch.nn.functional.dropout({0}, 0.0, True)",
    "torch.nn.functional.dropout({0}, 0.5, False)",
    "torch.cat([{0}, {0}], 0)[: {0}.shape[0]]",
    "{0}.detach()",
    "torch.nn.functional.dropout({0}, 0.3, True)",
)
_READS = ("{0}.sin()", "{0} * 2", "{0}.mean(-1)", "{0}.sum((-1, -2), keepdim=True)", "{0} @ {0}.mT")


def _listed(sizes: Iterable[Any]) -> str:
    return ", ".join(map(str, sizes))


class RefusedError(Exception):
    """Eager does not take a statement."""


class Draft:
    """What is written so far, and what its values are at the first size."""

    def __init__(self, rng: random.Random, *, seed: int, train: bool, noise: float) -> None:
        self.rng = rng
        self.train = train
        self.noise = noise
        """How often a step is disturbed."""
        self.n = rng.choice((2, 2, 2, 1, 3, 4))
        self._seed = seed
        self._inputs: list[Input] = []
        self._statements: list[Statement] = []
        self._self = types.SimpleNamespace()
        self._values: dict[str, Any] = {}
        self._also: list[str] = []
        self._aliases: list[str] = []
        """Views that are written later."""
        self._known: dict[Any, str] = {}
        self.low = rng.random() < 0.15
        self.generator = torch.Generator().manual_seed(seed)

    def one(self, things: Sequence[Any]) -> Any:
        return self.rng.choice(things)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def value(self, name: str) -> Any:
        if name.startswith("self."):
            return getattr(self._self, name.removeprefix("self."))
        return self._values[name]

    # What programs are given

    def given(self, expr: str, role: Role = "input", of: str = "") -> str:
        number = len(self._inputs)
        name = {"input": f"x{number}", "alias": f"x{number}"}.get(role, f"self.p{number}")
        if self.low and ".randn" in expr:
            expr += ".to(torch.bfloat16)"
        value = self._evaluated(expr)
        if role in {"input", "parameter"} and self.train and value.is_floating_point():
            value = value.detach().clone().requires_grad_()
        if name.startswith("self."):
            setattr(self._self, name.removeprefix("self."), value)
        else:
            self._values[name] = value
        self._inputs.append(Input(name=name, expr=expr, role=role, of=of))
        return name

    def image(self, channels: int, height: int = 4, width: int = 6, *, last: float = 0.6) -> str:
        shape = f"n, {channels}, {height}, {width}"
        pixels, wide = f"{height}, {width}", 2 * channels
        expr = f"torch.randn({shape})"
        drawn = self.rng.random()
        if drawn < last:
            expr += ".contiguous(memory_format=torch.channels_last)"
        elif drawn < last + 0.1:
            expr = self.one(
                (
                    f"torch.randn(n, {channels}, {height}, {2 * width})[..., ::2]",
                    f"torch.randn(n, {channels}, {width}, {height}).transpose(2, 3)",
                    f"torch.randn({channels}, n, {pixels}).transpose(0, 1)",
                    f"torch.randn(n, {channels}, 1, {width}).expand({shape})",
                    f"torch.randn(n, {channels}, 1, 1).expand({shape})",
                    f"torch.randn(n, {pixels}, {wide})[..., :{channels}].permute(0, 3, 1, 2)",
                )
            )
        return self.given(expr)

    def tokens(self, *shape: Any) -> str:
        sizes = _listed(shape)
        expr = f"torch.randn({sizes})"
        if self.chance(0.2):
            expr = self.one(
                (
                    f"torch.randn({sizes}, 2)[..., 0]",
                    f"torch.randn({sizes}).mT.contiguous().mT",
                    f"torch.randn({_listed((*shape[:-2], 1, shape[-1]))}).expand({sizes})",
                )
            )
        return self.given(expr)

    def learnt(self, *shape: int, dense: bool = False, scale: float | None = None) -> str:
        """Own numbers of a shape: a parameter, or another thing in its place; some are shared."""
        if (shape, dense) in self._known and self.chance(0.15):
            return self._known[shape, dense]
        sizes = _listed(shape)
        role = self.one(("parameter",) * 12 + ("frozen", "buffer", "input"))
        scale = (shape[-1] if len(shape) > 1 else 4) ** -0.5 if scale is None else scale
        expr = f"torch.randn({sizes}) * {scale:.2f}"
        drawn = self.rng.random()
        if drawn < 0.1 and not dense:
            rest, turned = _listed((*shape[1:], 1)), _listed(range(len(shape))[::-1])
            expr = self.one(
                (
                    f"torch.randn({sizes}, 2)[..., 1] * {scale:.2f}",
                    f"torch.randn({_listed(shape[::-1])}).permute({turned})",
                    f"torch.randn({2 * shape[0]}, {rest})[::2, ..., 0]",
                    f"torch.randn({shape[0] + 8}, {rest})[8:, ..., 0]",
                )
            )
        elif drawn < 0.15 and len(shape) == 4:
            expr = f"({expr}).contiguous(memory_format=torch.channels_last)"
        name = self.given(expr, role)
        self._known[shape, dense] = name
        if self.chance(0.06):
            return self.step(
                self.one(("{0} * 1.5", "{0}.clone()", "{0} + {0}.mean()", "{0}.view_as({0})")), name
            )
        return name

    def maybe(self, *shape: int, **how: Any) -> str | None:
        """Own numbers, or None."""
        return None if self.chance(0.25) else self.learnt(*shape, **how)

    # What programs do

    def take(self, expr: str, *args: str, gives: int = 1, under: str = "") -> str:
        """Add a statement; return the name that it gives."""
        targets = tuple(f"v{len(self._values) + n}" for n in range(gives))
        statement = Statement(kind="step", expr=expr, args=args, targets=targets, under=under)
        self._executed(statement.text)
        if any(isinstance(x, torch.Tensor) and x.numel() > 2**16 for x in self._values.values()):
            raise RefusedError("too large")
        self._statements.append(statement)
        return targets[0] if targets else ""

    def step(self, expr: str, *args: str | None) -> str:
        """Add a statement of a layer, and at times what disturbs it; None stands for itself."""
        names = tuple(x for x in args if x is not None)
        places = ["None" if x is None else f"{{{names.index(x)}}}" for x in args]
        under = self.one(MODES) if self.chance(self.noise / 6) else ""
        name = self.take(expr.format(*places), *names, under=under)
        if self.chance(self.noise):
            name = self._disturbed(name, names)
        return name

    def _disturbed(self, name: str, args: Sequence[str]) -> str:
        try:
            return self.one(
                (
                    self._again,
                    self._returned,
                    self._viewed,
                    self._written,
                    self._given_written,
                    self._alias_written,
                    self._same,
                    self._same,
                    self._aliased,
                )
            )(name, args)
        except RefusedError:
            return name

    def _again(self, name: str, args: Sequence[str]) -> str:
        self._also.append(self.take(self.one(_READS), self.one((name, *args))))
        return name

    def _returned(self, name: str, args: Sequence[str]) -> str:
        self._also.append(name)
        return name

    def _viewed(self, name: str, args: Sequence[str]) -> str:
        self._also.append(self.take(self.one(_VIEWS), name))
        return name

    def _written(self, name: str, args: Sequence[str]) -> str:
        target = self.take(self.one(_VIEWS), name) if self.chance(0.3) else name
        self.take(self.one(_WRITES), target, gives=0)
        return name

    def _given_written(self, name: str, args: Sequence[str]) -> str:
        earlier = [x for x, y in self._values.items() if isinstance(y, torch.Tensor)]
        target = self.one((*args, self.one(earlier)))
        under = "torch.no_grad()" if self.train and self.chance(0.7) else ""
        self.take(self.one(_WRITES), target, gives=0, under=under)
        return name

    def _alias_written(self, name: str, args: Sequence[str]) -> str:
        """Write what is read by another of the program's inputs."""
        inputs = [x.name for x in self._inputs if x.role == "input" and x.name in args]
        if self.train or not inputs:
            raise RefusedError("no input is read, or leaves that are trained would share memory")
        read = self.one(inputs)
        alias = self.given(self.one(("{0}.view_as({0})", "{0}[:1]")).format(read), "alias", read)
        self.take(self.one(_WRITES), alias, gives=0)
        return name

    def _same(self, name: str, args: Sequence[str]) -> str:
        return self.take(self.one(_SAME), name)

    def _aliased(self, name: str, args: Sequence[str]) -> str:
        """View what is written later, or returned."""
        self._aliases.append(self.take(self.one(_VIEWS), self.one((name, *args))))
        if self.chance(0.5):
            self._also.append(self._aliases[-1])
        return name

    def write_aliases(self) -> None:
        """Write what was viewed before."""
        while self._aliases:
            if self.chance(0.5):
                try:
                    self.take(self.one(_WRITES), self._aliases.pop(), gives=0)
                except RefusedError:
                    continue
            else:
                self._aliases.pop()

    def program(self, last: str) -> Program:
        """Return what is written, with its results."""
        self.write_aliases()
        outputs = [last] if not self.chance(0.1) else [last, last]
        outputs += [x for x in self._also if not x.startswith("self.")]
        self.rng.shuffle(outputs)
        sizes = (self.n,)
        dynamic = False
        if self.chance(0.12):
            sizes, dynamic = self.one(
                (((2, 3), None), ((3, 1), None), ((2,), True), ((2, 5, 0), None))
            )
        under = self.one(MODES[:1] + ("",) * 7)
        # A checkpoint runs it twice: what it writes would be written twice.
        writes = any(
            not x.targets or "_(" in x.expr or "lace=True" in x.expr for x in self._statements
        )
        checkpointed = self.train and not writes and self.chance(0.1)
        return without_unused(
            Program(
                seed=self._seed,
                inputs=tuple(self._inputs),
                statements=tuple(self._statements),
                outputs=tuple(outputs),
                sizes=sizes,
                dynamic=dynamic,
                train=self.train,
                under=under,
                checkpointed=checkpointed,
            )
        )

    def _names(self) -> dict[str, Any]:
        return {"torch": torch, "self": self._self, "n": self.n, **self._values}

    def _evaluated(self, expr: str) -> Any:
        try:
            with torch.random.fork_rng(devices=[]):
                return eval(expr, self._names())
        except _REFUSALS as error:
            raise RefusedError(f"{expr}: {error}") from error

    def _executed(self, text: str) -> None:
        names = self._names()
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(self.train):
                warnings.simplefilter("ignore")
                exec(text, names)
        except _REFUSALS as error:
            raise RefusedError(f"{text}: {error}") from error
        for name, value in names.items():
            if name not in {"torch", "self", "n", "__builtins__"}:
                self._values[name] = value


_REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, AttributeError)
