"""What programs share that run kernels in Triton's interpreter."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from hypothesis import settings
from triton.runtime import interpreter

INTERPRETER: Any = interpreter


def round_casts() -> None:
    """Have casts from float32 to bfloat16 round to nearest, as hardware does; for good.

    The interpreter cuts bits off, which makes up to twice the error. Casts to float16 it rounds.
    """
    cut_off = INTERPRETER._convert_float

    def convert(data: Any, source: Any, to: Any, mode: Any) -> Any:
        if source != tl.float32 or to != tl.bfloat16:
            return cut_off(data, source, to, mode)
        rounded = torch.from_numpy(np.array(data)).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy().view(np.uint16)

    INTERPRETER._convert_float = convert


def few(examples: int) -> None:
    """Have hypothesis draw so many examples, the same ones each time, however long they take."""
    settings.register_profile("few", deadline=None, max_examples=examples, derandomize=True)
    settings.load_profile("few")


def assert_as_near_as_eager(
    names: Iterable[str],
    found: Iterable[torch.Tensor],
    eager: Iterable[torch.Tensor],
    exact: Iterable[torch.Tensor],
    far: float = 0.0,
) -> None:
    """Assert that a kernel's results are as near to the exact ones as eager's on the CPU are.

    A few units of float32 are allowed beyond: sums are of another order there, or of float64. Means
    of what is ``far`` from 0, in deviations, are rounded by that much more. In 16 bits eager also
    rounds between its steps, and the kernel once.
    """
    for name, y, other, truth in zip(names, found, eager, exact, strict=True):
        assert y.shape == truth.shape, name
        assert y.dtype == other.dtype, name
        error, allowed = ((t.double() - truth).norm() for t in (y, other))
        floor = 4 * 2**-24 * (1 + far) * truth.norm()
        assert error <= 1.1 * allowed + floor, (name, y.dtype, error, allowed, floor)
