"""Optimizers of level training: steps compiled by the backend, against steps in eager.

The gradients are given, the same to all, so that what is compared is the optimizer alone. Truth is
the same optimizer on float64 parameters.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from backbay_conformance.case import Case, Cases
from backbay_conformance.levels import opinfo, sampled
from backbay_conformance.levels.making import judged
from backbay_conformance.levels.opinfo import OptimizerEntry
from backbay_conformance.subject import Subject

STEPS = 3
"""The first initialises the state, the second is the first with state, the third repeats it."""
_SHAPES = ((5, 4), (3, 7))
Step = Callable[..., Any]


def cases(device: str) -> Cases:
    """Return a case for each setting of each optimizer that torch tests, and one on lists."""
    try:
        entries = opinfo.optimizers()
    except opinfo.DriftError:
        return  # `sampled.drift` says so
    for entry in entries:
        settings = entry.settings(device)
        if entry.takes_lists:  # left to itself, torch takes parameters one by one on a CPU
            settings["foreach"] = {"foreach": True}
        for name, setting in settings.items():
            case_id = f"training/optimizers/{entry.name}/{name}"
            run = functools.partial(_agrees, case_id, entry, setting)
            yield Case(id=case_id, run=run, needs=frozenset({"float32", "mutation"}))


def _agrees(
    case_id: str, entry: OptimizerEntry, settings: Mapping[str, Any], subject: Subject
) -> None:
    sampled.seed(case_id, subject.seed)
    tensors = [[torch.randn(x, device=subject.device) for x in _SHAPES] for _ in range(STEPS + 1)]
    run = functools.partial(_run, entry, settings, tensors)
    eager, truth = run(torch.float32, _as_it_is), run(torch.float64, _as_it_is)
    got = run(torch.float32, subject.compile)
    named = (
        {f"parameter {i} after {STEPS} steps": x for i, x in enumerate(values)}
        for values in (got, eager, truth)
    )
    judged(subject, *named, status="fail_mutation")


def _run(
    entry: OptimizerEntry,
    settings: Mapping[str, Any],
    tensors: list[list[torch.Tensor]],
    dtype: torch.dtype,
    compiled: Callable[[Step], Step],
) -> list[torch.Tensor]:
    first, *pushes = tensors
    parameters = [torch.nn.Parameter(x.to(dtype, copy=True)) for x in first]
    # Of a learning rate that is a tensor, a copy: an optimizer may change it.
    own = {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in settings.items()}
    optimizer = entry.make(parameters, own)
    step = compiled(optimizer.step)
    for push in pushes:
        for parameter, gradient in zip(parameters, push, strict=True):
            given = gradient.to(dtype)
            parameter.grad = given.to_sparse() if entry.wants_sparse else given
        step(functools.partial(_loss, parameters)) if entry.needs_closure else step()
    return [x.detach() for x in parameters]


def _loss(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    for parameter in parameters:
        parameter.grad = None
    loss = torch.stack([x.square().sum() for x in parameters]).sum()
    loss.backward()
    return loss


def _as_it_is(step: Step) -> Step:
    return step
