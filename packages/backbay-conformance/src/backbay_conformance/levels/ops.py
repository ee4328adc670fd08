"""Level ops: the forward of every operator that torch has inputs for, in float32.

Each is asked as a function, as a method, as the form that writes to its first argument, and as a
function of inputs laid out with gaps. What numbers elements is asked about transposed inputs as
well, and what is given places about places that repeat. Values, dtypes, strides, sharing of memory
and what is changed are held against eager, by the rule of every proof.
"""

import functools
from collections.abc import Iterator

from backbay_conformance.case import Cases
from backbay_conformance.levels import sampled, varying
from backbay_conformance.levels.opinfo import Operator, Sample
from backbay_conformance.subject import Subject

DTYPE = "float32"
NUMBERING = frozenset(
    {
        "argmax",
        "argmin",
        "argsort",
        "cummax",
        "cummin",
        "flatten",
        "kthvalue",
        "masked_scatter",
        "max.reduction_with_dim",
        "median",
        "min.reduction_with_dim",
        "mode",
        "nanmedian",
        "nn.functional.adaptive_max_pool2d",
        "nn.functional.max_pool2d",
        "put",
        "ravel",
        "repeat_interleave",
        "reshape",
        "roll",
        "searchsorted",
        "sort",
        "take",
        "topk",
    }
)
"""Operators that say, or are told, which element it is by counting: not as memory has them."""
PLACED = frozenset(
    {
        "gather",
        "index_add",
        "index_put",
        "index_reduce.amax",
        "index_reduce.amin",
        "index_reduce.mean",
        "index_reduce.prod",
        "index_select",
        "nn.functional.embedding",
        "put",
        "scatter_add",
        "scatter_reduce.amax",
        "scatter_reduce.amin",
        "scatter_reduce.mean",
        "scatter_reduce.prod",
        "scatter_reduce.sum",
        "take",
        "take_along_dim",
    }
)
"""Operators that read, or add up, at places which may repeat. Not those that overwrite there."""


def cases(device: str, *, all_samples: bool) -> Cases:
    """Return the cases of this level."""
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


def _forms(operator: Operator) -> Iterator[tuple[str, sampled.Make, tuple[str, ...]]]:
    """Yield the forms of an operator: name, what makes their samples, and further needs."""

    def varied(vary: varying.Vary) -> sampled.Make:
        return lambda operator, device: varying.varied(operator.samples(device, DTYPE), vary)

    yield DTYPE, functools.partial(Operator.samples, dtype=DTYPE), ()
    with_gaps = functools.partial(Operator.noncontiguous_samples, dtype=DTYPE)
    yield f"{DTYPE}-noncontiguous", with_gaps, ()
    if operator.name in NUMBERING:
        yield f"{DTYPE}-transposed", varied(varying.transposed), ()
    if operator.name in PLACED:
        yield f"{DTYPE}-repeated", varied(varying.repeated), ()
    if operator.is_method:
        yield f"{DTYPE}-method", functools.partial(Operator.method_samples, dtype=DTYPE), ()
    if operator.works_in_place:
        in_place = functools.partial(Operator.in_place_samples, dtype=DTYPE)
        yield f"{DTYPE}-inplace", in_place, ("mutation",)
