"""Level ops: the forward of every operator that torch has inputs for, in float32.

Each is asked as a function, as a method, as the form that writes to its first argument, and as a
function of inputs laid out with gaps. Values, dtypes, strides, sharing of memory and what is
changed are held against eager, by the rule of every proof.
"""

import torch

from backbay.conformance.case import Cases
from backbay.conformance.levels import sampled
from backbay.conformance.levels.opinfo import Operator, Sample
from backbay.conformance.subject import Subject

DTYPE = "float32"


def cases(device: str, *, all_samples: bool) -> Cases:
    """Give the cases of this level."""
    yield from sampled.drift("ops")
    for operator in sampled.known():
        if DTYPE not in operator.dtypes(device):
            continue
        for name, make, needs in _forms(operator):
            yield sampled.case(
                f"ops/{operator.name}/{name}",
                operator,
                make,
                forward,
                needs={DTYPE, *needs},
                all_samples=all_samples,
            )


def forward(subject: Subject, sample: Sample) -> None:
    """Ask for the forward of one sample."""
    subject.agrees_on(sample.workload())


def _forms(operator: Operator) -> list[tuple[str, sampled.Make, tuple[str, ...]]]:
    forms: list[tuple[str, sampled.Make, tuple[str, ...]]] = [
        (DTYPE, _plain, ()),
        (f"{DTYPE}-noncontiguous", _noncontiguous, ()),
    ]
    if operator.is_method:
        forms.append((f"{DTYPE}-method", _method, ()))
    if operator.works_in_place:
        forms.append((f"{DTYPE}-inplace", _in_place, ("mutation",)))
    return forms


def _plain(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.samples(device, DTYPE)


def _noncontiguous(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.noncontiguous_samples(device, DTYPE)


def _method(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.method_samples(device, DTYPE)


def _in_place(operator: Operator, device: torch.device) -> sampled.Samples:
    return operator.in_place_samples(device, DTYPE)
