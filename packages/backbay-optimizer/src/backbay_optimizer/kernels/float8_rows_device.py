"""Device code of :mod:`backbay_optimizer.kernels.float8_rows`; importing it imports Triton.

A program holds one whole row in registers, in float32, from its one read to its one write.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _larger(one, other):
    """The larger of two; NaN if either is, as of PyTorch's maximum."""
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@jit
def float8_rows_kernel(
    x_ptr, by_ptr, residual_ptr, total_ptr, y_ptr, scale_ptr,
    x_stride, by_stride, residual_stride, eps, offset, floor, most,
    columns: tl.constexpr, width: tl.constexpr, kind: tl.constexpr,
):
    """Rows of ``kind`` in float8, and the scale of each.

    Strides are those of rows. ``total_ptr`` gets the sum of ``x`` and the residual, if there is
    one. ``width`` is the power of two from ``columns`` on.
    """
    # Compiled graphs pass numbers of 64 bits.
    eps, offset = tl.cast(eps, tl.float32), tl.cast(offset, tl.float32)
    floor, most = tl.cast(floor, tl.float32), tl.cast(most, tl.float32)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, width)
    there = col < columns
    x = tl.load(x_ptr + row * x_stride + col, mask=there, other=0.0)
    if residual_ptr is not None:
        added = tl.load(residual_ptr + row * residual_stride + col, mask=there, other=0.0)
        x = (x.to(tl.float32) + added.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + row * columns + col, x, mask=there)
    y = x.to(tl.float32)
    if kind == "rms_norm":
        weight = tl.load(by_ptr + col, mask=there, other=0.0).to(tl.float32) + offset
        y = y * tl.rsqrt(tl.sum(y * y, 0) / columns + eps) * weight
    elif kind == "silu":
        gated = tl.load(by_ptr + row * by_stride + col, mask=there, other=0.0).to(tl.float32)
        y = y * tl.sigmoid(y) * gated
    top = tl.reduce(tl.abs(y), 0, _larger)
    scale = _larger(top, floor) / most
    # Not clamped: only rounding takes it past float8's largest number, which it is rounded to.
    tl.store(y_ptr + row * columns + col, (y / scale).to(y_ptr.dtype.element_ty), mask=there)
    tl.store(scale_ptr + row, scale)
