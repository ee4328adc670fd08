"""The cases of the calibration: one right or wrong result each."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from backbay.proof.golden import Golden
from backbay.proof.making import make_golden
from backbay.proof.outcome import Outcome, observe
from backbay.workloads.workload import Workload
from calibration.arithmetic import HONEST, Arithmetic
from calibration.faults import FINITE, NON_FINITE, Fault
from calibration.programs import Model, Program, workload_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """One result to be judged."""

    program: str
    what: str
    """The fault, or the honest variant."""
    honest: bool
    golden: Golden
    outcome: Outcome
    touched: tuple[str, ...]
    """The tensors that may differ from eager's."""

    def of(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return one tensor's result, eager and truth."""
        outcomes = (self.outcome, self.golden.eager, self.golden.truth)
        result, eager, truth = (tensors_of(x)[name] for x in outcomes)
        return result, eager, truth

    def is_visible(self) -> bool:
        """Whether an element is further from the truth than one unit in the last place.

        A result within one unit everywhere is faithfully rounded: no arithmetic of this precision
        promises better. The unit is the working precision's (a bfloat16 model may give a float32
        loss), and that of an element of mean size at least.
        """
        return any(_shows(*self.of(name), self.golden.working) for name in self.touched)


def cases(
    program: Program,
    *,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
    backends: tuple[str, ...] = (),
) -> Iterator[Case]:
    """Yield every case of one program, in one precision, from one seed."""
    workload = workload_of(program, dtype=dtype, seed=seed, device=device)
    golden = make_golden(workload, train=program.train, seed=seed)
    cut = _Cut(program=program, workload=workload, golden=golden, seed=seed)
    yield from cut.honest(backends)
    yield from cut.structural()
    yield from cut.planted()
    yield from cut.non_finite()


@dataclass(frozen=True, kw_only=True)
class _Cut:
    program: Program
    workload: Workload
    golden: Golden
    seed: int

    def honest(self, backends: tuple[str, ...]) -> Iterator[Case]:
        rounded = {k: _as(self.golden, k, x) for k, x in tensors_of(self.golden.truth).items()}
        yield self._case("float64, rounded", self._with(rounded), honest=True)
        yield self._case("float32 inside", self._in_float32(), honest=True)
        yield self._case("two threads", self._in_threads(), honest=True)
        for name, arithmetic in HONEST.items():
            model = Model(self.program, arithmetic(), None)
            yield self._case(name, self._observed(model), honest=True)
        for backend in backends:
            torch.compiler.reset()
            yield self._case(
                backend, self._observed(_compiled(self.workload, backend)), honest=True
            )

    def structural(self) -> Iterator[Case]:
        """Yield the faults of the program itself, in output and gradients."""
        for fault in self.program.faults:
            wrong = self._observed(Model(self.program, Arithmetic(), fault))
            eager, given = tensors_of(self.golden.eager), tensors_of(wrong)
            if any(not torch.equal(x, eager[name]) for name, x in given.items()):
                yield self._case(fault, wrong, touched=tuple(given))

    def planted(self) -> Iterator[Case]:
        """Yield the faults of any program, in the output and then in each gradient in turn."""
        generator = torch.Generator().manual_seed(self.seed)
        truth = tensors_of(self.golden.truth)
        # A tensor whose truth is zero (the bias before a batch norm) is all noise: it has nothing
        # that could be scaled, shifted or swapped.
        targets = {name: x for name, x in truth.items() if self.golden.noise[name].rms < _rms(x)}
        for position, (name, fault) in enumerate(FINITE.items()):
            if name in _AS_FINE and self.golden.working == torch.bfloat16:
                continue  # as many digits as bfloat16 has are no fault
            for target in sorted({"output", list(targets)[position % len(targets)]}):
                wrong = self._planted(fault, target, generator)
                if wrong is not None:
                    yield self._case(f"{name} in {target}", wrong, touched=(target,))

    def non_finite(self) -> Iterator[Case]:
        """Yield the faults of a result that holds NaN and infinities."""
        if self.golden.truth.tensors["output"].numel() < len(_SPECIAL):
            return
        special = dataclasses.replace(
            self, golden=_with_specials(self.golden), workload=self.workload
        )
        generator = torch.Generator().manual_seed(self.seed)
        for name, fault in NON_FINITE.items():
            wrong = special._planted(fault, "output", generator)  # noqa: SLF001 (of this class)
            if wrong is not None:
                yield special._case(name, wrong, touched=("output",))  # noqa: SLF001

    def _case(
        self, what: str, outcome: Outcome, *, honest: bool = False, touched: tuple[str, ...] = ()
    ) -> Case:
        return Case(
            program=self.program.name,
            what=what,
            honest=honest,
            golden=self.golden,
            outcome=outcome,
            touched=touched or tuple(tensors_of(self.golden.truth)),
        )

    def _planted(self, fault: Fault, target: str, generator: torch.Generator) -> Outcome | None:
        truth = tensors_of(self.golden.truth)[target]
        right = _as(self.golden, target, truth)
        wrong = _as(self.golden, target, fault(truth, generator))
        if torch.equal(wrong.nan_to_num(nan=12345.0), right.nan_to_num(nan=12345.0)):
            return None
        return self._with({target: wrong})

    def _with(self, tensors: dict[str, torch.Tensor]) -> Outcome:
        eager = self.golden.eager
        return dataclasses.replace(
            eager,
            tensors=eager.tensors | {k: x for k, x in tensors.items() if k in eager.tensors},
            gradients=eager.gradients | {k: x for k, x in tensors.items() if k in eager.gradients},
        )

    def _observed(self, call: Callable[..., Any]) -> Outcome:
        return observe(call, self.workload, train=self.program.train, seed=self.seed)

    def _in_threads(self) -> Outcome:
        before = torch.get_num_threads()
        torch.set_num_threads(before % 2 + 1)
        try:
            return self._observed(self.workload.model)
        finally:
            torch.set_num_threads(before)

    def _in_float32(self) -> Outcome:
        # Rounding the result last also rounds the cotangent that backward starts from, as eager's.
        model = _Rounding(self.workload.model, self.golden.working)
        wide = dataclasses.replace(
            self.workload,
            args=tuple(x.float() if x.is_floating_point() else x for x in self.workload.args),
        )
        outcome = observe(model, wide, train=self.program.train, seed=self.seed)
        tensors = tensors_of(outcome)
        return self._with({k: _as(self.golden, k, x) for k, x in tensors.items()})


class _Rounding(torch.nn.Module):
    """Computes in float32 and rounds the result alone."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(*inputs)
        return result.to(self.dtype) if result.dim() else result


def _shows(
    result: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, working: torch.dtype
) -> bool:
    finite = result.isfinite()
    if not torch.equal(finite, eager.isfinite()):
        return True
    result, truth = result[finite].double(), truth[finite]
    if not truth.numel():
        return False
    unit = torch.finfo(working).eps * truth.abs().clamp_min(truth.abs().mean())
    return bool(((result - truth).abs() > unit).any())


def _rms(value: torch.Tensor) -> float:
    return value.square().mean().sqrt().item()


def _compiled(workload: Workload, backend: str) -> Callable[..., Any]:
    call: Callable[..., Any] = torch.compile(workload.model, backend=backend)
    return call


def tensors_of(outcome: Outcome) -> dict[str, torch.Tensor]:
    """Return outputs and gradients together, by name."""
    gradients = {name: x for name, x in outcome.gradients.items() if x is not None}
    return outcome.tensors | gradients


def _as(golden: Golden, name: str, value: torch.Tensor) -> torch.Tensor:
    """Round to eager's dtype, in eager's layout."""
    like = tensors_of(golden.eager)[name]
    return torch.empty_like(like).copy_(value)


_AS_FINE = ("float16 inside", "bfloat16 inside")
_SPECIAL = (torch.nan, torch.inf, -torch.inf)


def _with_specials(golden: Golden) -> Golden:
    def planted(outcome: Outcome) -> Outcome:
        output = outcome.tensors["output"].clone()
        for position, value in enumerate(_SPECIAL):
            output.view(-1)[position * (output.numel() // len(_SPECIAL))] = value
        return dataclasses.replace(outcome, tensors=outcome.tensors | {"output": output})

    return dataclasses.replace(golden, eager=planted(golden.eager), truth=planted(golden.truth))
