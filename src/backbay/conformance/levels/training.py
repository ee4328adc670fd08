"""Level training: gradients of operators and modules, steps of optimizers.

Backward starts from random cotangents, one for each result that can be differentiated, so that no
gradient cancels. Every input that torch's data base differentiates must get its gradient.
"""

import functools
from collections.abc import Iterator

import torch

from backbay.conformance.case import Case, Cases
from backbay.conformance.levels import backward, opinfo, optimizing, sampled
from backbay.conformance.levels.opinfo import ModuleEntry, Operator, Sample, Source
from backbay.conformance.subject import Subject

DTYPE = "float32"
NEEDS = frozenset({DTYPE, "training"})
_FURTHER: dict[str, Source] = {
    "autograd-functions": "autograd_functions",
    "custom-operators": "custom_operators",
}


def cases(device: str, *, all_samples: bool) -> Cases:
    """Give the cases of this level."""
    yield from sampled.drift("training")
    for operator in sampled.known():
        yield from _of_operator("training", operator, device, all_samples=all_samples)
    for family, source in _FURTHER.items():
        for operator in sampled.known(source):
            yield from _of_operator(f"training/{family}", operator, device, all_samples=all_samples)
    yield from _of_modules(all_samples=all_samples)
    yield from optimizing.cases(device)
    yield from backward.cases(device)


def gradients(subject: Subject, sample: Sample) -> None:
    """Ask for forward and backward of one sample."""
    subject.agrees_on(sample.workload(), train=True)


def _of_operator(prefix: str, operator: Operator, device: str, *, all_samples: bool) -> Cases:
    if not operator.trains(device, DTYPE):
        return
    makes: dict[str, sampled.Make] = {DTYPE: _plain, f"{DTYPE}-noncontiguous": _noncontiguous}
    for name, make in makes.items():
        yield sampled.case(
            f"{prefix}/{operator.name}/{name}",
            operator,
            make,
            gradients,
            needs=NEEDS,
            all_samples=all_samples,
        )


def _plain(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.samples(device, DTYPE, requires_grad=True)


def _noncontiguous(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.noncontiguous_samples(device, DTYPE, requires_grad=True)


def _of_modules(*, all_samples: bool) -> Cases:
    for entry in _modules():
        for mode in ("train", "eval"):
            case_id = f"training/modules/{entry.short}/{mode}"
            run = functools.partial(_module, case_id, entry, mode == "train", all_samples)
            yield Case(id=case_id, run=run, needs=NEEDS)


def _modules() -> Iterator[ModuleEntry]:
    try:
        yield from opinfo.modules()
    except opinfo.DriftError:
        return  # `sampled.drift` says so


def _module(
    case_id: str, entry: ModuleEntry, training: bool, all_samples: bool, subject: Subject
) -> None:
    sampled.seed(case_id, subject.seed)
    made = entry.made(subject.device, torch.float32, training=training)
    if all_samples:
        sampled.all_asked(subject, list(made), gradients)
    else:
        gradients(subject, sampled.first(made))
