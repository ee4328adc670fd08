"""Holds what a backend gives for one spelling of a program against what it gives for another."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from backbay.proof import Golden, Noise, Outcome, Workload, compare, observe
from backbay_conformance.answers import Reference
from backbay_conformance.case import Failed, NotRunnable
from backbay_conformance.fuzz.building import built, inputs_of
from backbay_conformance.fuzz.drawing import program as drawn
from backbay_conformance.fuzz.holding import reference_at
from backbay_conformance.fuzz.metamorphic import TWINS
from backbay_conformance.fuzz.program import Program
from backbay_conformance.subject import Subject, as_module

_SEEDS_TRIED = 60
_TWICE = 2.0
"""Both sides of the comparison are rounded, where truth is not."""
_LOW = {"bfloat16", "float16"}


def pair_at(name: str, number: int) -> tuple[Program, Program]:
    """Return the first program from a number on that has a twin of a kind, and the twin.

    Raises:
        NotRunnable: none is near.
    """
    for seed in range(number * _SEEDS_TRIED, (number + 1) * _SEEDS_TRIED):
        program = drawn(seed)
        if not program.widens or _LOW & set(program.dtypes):
            continue  # how far its results scatter is not known well enough
        twin = TWINS[name](program)
        if twin is not None:
            return program, twin
    raise NotRunnable(f"no program from seed {number * _SEEDS_TRIED} on has such a twin")


def hold_pair(subject: Subject, program: Program, twin: Program) -> None:
    """Compile both, and hold one's results against the other's, at every size.

    Raises:
        Failed: they differ by more than two honest results of one program do.
    """
    results = [_outcomes(subject, x) for x in (program, twin)]
    for n, one, other in zip(program.sizes, *results, strict=True):
        workload = Workload(
            built(program).to(subject.device), inputs_of(program, n, subject.device)
        )
        golden = reference_at(subject, workload, program)
        judge_alike(subject, one, other, golden)


def _outcomes(subject: Subject, program: Program) -> list[Outcome]:
    torch.compiler.reset()
    module = built(program).to(subject.device)
    call = subject.compile(module, dynamic=program.dynamic)
    found = []
    for n in program.sizes:
        workload = Workload(module, inputs_of(program, n, subject.device))
        found.append(observe(call, workload, train=program.train, seed=subject.seed))
    return found


def hold_function_pair(
    subject: Subject, one: Callable[..., Any], other: Callable[..., Any], *args: torch.Tensor
) -> None:
    """Compile two functions that mean the same, and hold one's results against the other's.

    Raises:
        Failed: they differ.
    """
    found = []
    for function in (one, other):
        torch.compiler.reset()
        workload = Workload(as_module(function), args)
        call = subject.compile(workload.model)
        found.append(observe(call, workload, train=False, seed=subject.seed))
    golden = subject.golden(Workload(as_module(one), args), train=False)
    judge_alike(subject, found[0], found[1], golden)


def judge_alike(subject: Subject, one: Outcome, other: Outcome, golden: Reference) -> None:
    """Hold one outcome of the backend against another.

    Raises:
        Failed: they differ by more than the golden's noise allows.
    """

    def how(given: tuple[Outcome, Outcome]) -> None:
        assert isinstance(golden, Golden), "who judges has made it"
        raise_if_unlike(*given, golden)

    subject.answers.answer((one, other), how)


def raise_if_unlike(one: Outcome, other: Outcome, golden: Golden) -> None:
    """Hold every tensor of one outcome against another's.

    Raises:
        Failed: one differs by more than its noise allows, or is missing.
    """
    mine, others = _everything(one), _everything(other)
    if mine.keys() != others.keys():
        different = min(mine.keys() ^ others.keys())
        raise Failed("fail_value", f"{different}: only one of the two spellings gives it")
    for name, reference in mine.items():
        true = reference.to(torch.complex128 if reference.is_complex() else torch.float64)
        verdict = compare(
            others[name],
            reference,
            true,
            working=golden.working,
            name=name,
            noise=_doubled(golden.noise.get(name)),
            strides=False,
        )
        if not verdict.passed:
            raise Failed("fail_value", f"{name}: the two spellings differ: {verdict.reason}")


def _doubled(noise: Noise | None) -> Noise | None:
    if noise is None:
        return None
    fields: Mapping[str, float] = {
        x: _TWICE * getattr(noise, x) for x in ("rms", "peak", "mean", "along", "middle")
    }
    return dataclasses.replace(noise, **fields)  # type: ignore[arg-type] # all of them are floats


def _everything(outcome: Outcome) -> dict[str, torch.Tensor]:
    gradients = {name: x for name, x in outcome.gradients.items() if x is not None}
    changed = {f"{name} after the run": x for name, x in outcome.changed.items()}
    return outcome.tensors | gradients | changed
