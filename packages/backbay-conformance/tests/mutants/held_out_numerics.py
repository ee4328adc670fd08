"""Set aside: faults that nobody who writes levels looks at, of the kind in ``numerics``."""

from typing import Any

import torch

from mutants.harness import (
    Backend,
    Plan,
    aot,
    of_pointwise,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import _replaced, once


def _signs(compiled: Compiled) -> Any:
    return compiled(torch.expm1)(torch.tensor([-0.0, 0.0])).signbit()


FAULTS = [
    Mutant(
        name="negative_zero_lost",
        family="numerics",
        fault="A negative zero in the result of a pointwise operator is a positive one instead.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/191038",
        compiler=Backend(
            "negative_zero_lost",
            aot(Plan(faults=of_pointwise(_replaced(lambda x: x == 0, 0.0)))),
        ),
        shown_by=_signs,
    ),
    Mutant(
        name="infinity_becomes_nan",
        family="numerics",
        fault="An infinity in the result of a pointwise operator is NaN instead.",
        level="contract",
        compiler=Backend(
            "infinity_becomes_nan",
            aot(Plan(faults=of_pointwise(_replaced(torch.isinf, torch.nan)))),
        ),
        shown_by=once(torch.exp, torch.tensor([1.0, 1000.0])),
    ),
]
