"""Level dtypes: the forward of every operator in every dtype that eager takes on the device.

All but float32, which is level ops'. A backend that computes float64 in float32, or int64 in
int32, is seen here: the rule's tolerance is that of the dtype.
"""

import functools

from backbay_conformance.case import Cases
from backbay_conformance.levels import ops, sampled
from backbay_conformance.levels.opinfo import Operator


def cases(device: str, *, all_samples: bool) -> Cases:
    """Return the cases of this level."""
    yield from sampled.drift("dtypes")
    for operator in sampled.known():
        for dtype in operator.dtypes(device):
            if dtype == ops.DTYPE:
                continue
            yield sampled.case(
                f"dtypes/{operator.name}/{dtype}",
                operator,
                functools.partial(Operator.samples, dtype=dtype),
                ops.forward,
                needs={dtype},
                all_samples=all_samples,
            )
