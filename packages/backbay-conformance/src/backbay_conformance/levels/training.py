"""Level training: gradients of operators and modules, steps of optimizers.

Backward starts from random cotangents, one for each result that can be differentiated, so that no
gradient cancels. Every input that torch's data base differentiates must get its gradient.
"""

import functools

import torch

from backbay_conformance.case import Case, Cases
from backbay_conformance.levels import backward, opinfo, optimizing, sampled, varying
from backbay_conformance.levels.opinfo import ModuleEntry, Operator, Sample, Source
from backbay_conformance.subject import Subject

DTYPE = "float32"
NEEDS = frozenset({DTYPE, "training"})
_FURTHER: dict[str, Source] = {
    "autograd-functions": "autograd_functions",
    "custom-operators": "custom_operators",
}
PUTTING = frozenset(
    {
        "diagonal_scatter",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "masked_fill",
        "masked_scatter",
        "scatter",
        "scatter_add",
        "select_scatter",
        "slice_scatter",
    }
)
"""Operators that put something into a part, and whose backward does: the elements of an expanded
tensor share memory, and a write to one of them must reach no other."""
_EXPANDED: dict[str, varying.Vary] = {
    "expanded-input": varying.of_expanded,
    "expanded-gradient": varying.summed,
}
_EXPANDED_SHARE = 0.1
"""More than the level's: no other level asks this."""


def cases(device: str, *, all_samples: bool) -> Cases:
    """Return the cases of this level."""
    yield from sampled.drift("training")
    for operator in sampled.known():
        yield from _of_operator("training", operator, device, all_samples=all_samples)
    for family, source in _FURTHER.items():
        for operator in sampled.known(source):
            yield from _of_operator(f"training/{family}", operator, device, all_samples=all_samples)
    yield from _of_expanded(device, all_samples=all_samples)
    yield from _of_modules(all_samples=all_samples)
    yield from optimizing.cases(device)
    yield from backward.cases(device)


def gradients(subject: Subject, sample: Sample) -> None:
    """Ask for forward and backward of one sample."""
    subject.agrees_on(sample.workload(), train=True)


def _of_operator(prefix: str, operator: Operator, device: str, *, all_samples: bool) -> Cases:
    if not operator.trains(device, DTYPE):
        return
    makes = {DTYPE: Operator.samples, f"{DTYPE}-noncontiguous": Operator.noncontiguous_samples}
    for name, make in makes.items():
        yield sampled.case(
            f"{prefix}/{operator.name}/{name}",
            operator,
            functools.partial(make, dtype=DTYPE, requires_grad=True),
            gradients,
            needs=NEEDS,
            all_samples=all_samples,
        )


def _of_expanded(device: str, *, all_samples: bool) -> Cases:
    for operator in sampled.known():
        if operator.name not in PUTTING or not operator.trains(device, DTYPE):
            continue
        for family, vary in _EXPANDED.items():
            yield sampled.case(
                f"training/{family}/{operator.name}",
                operator,
                functools.partial(_varied, vary),
                gradients,
                needs=NEEDS,
                all_samples=all_samples,
                share=_EXPANDED_SHARE,
            )


def _varied(vary: varying.Vary, operator: Operator, device: torch.device) -> sampled.Samples:
    return varying.varied(operator.samples(device, DTYPE, requires_grad=True), vary)


def _of_modules(*, all_samples: bool) -> Cases:
    try:
        entries = opinfo.modules()
    except opinfo.DriftError:
        return  # `sampled.drift` says so
    for entry in entries:
        for mode in ("train", "eval"):
            case_id = f"training/modules/{entry.short}/{mode}"
            run = functools.partial(_module, case_id, entry, mode == "train", all_samples)
            yield Case(id=case_id, run=run, needs=NEEDS)


def _module(
    case_id: str, entry: ModuleEntry, training: bool, all_samples: bool, subject: Subject
) -> None:
    sampled.seed(case_id, subject.seed)
    made = entry.made(subject.device, torch.float32, training=training)
    if all_samples:
        sampled.all_asked(subject, list(made), gradients)
    else:
        gradients(subject, sampled.first(made))
