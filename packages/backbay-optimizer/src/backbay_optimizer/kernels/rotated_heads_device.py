"""Device code of :mod:`backbay_optimizer.kernels.rotated_heads`; importing it imports Triton."""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def rotated_heads_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, y_ptr, heads, angles,
    x_stride, cos_stride, sin_stride, eps, offset, half: tl.constexpr, block: tl.constexpr,
):
    """A block of the heads of a token, normalised and turned. ``angles`` are rows of angles."""
    eps = tl.cast(eps, tl.float32)  # compiled graphs pass numbers of 64 bits
    offset = tl.cast(offset, tl.float32)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block + tl.arange(0, block)
    col = tl.arange(0, half)
    at = head[:, None] * (2 * half) + col[None, :]
    there = head[:, None] < heads
    x_ptr += token * x_stride
    one = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + half + at, mask=there, other=0.0).to(tl.float32)
    squares = tl.sum(one * one, 1) + tl.sum(other * other, 1)
    root = tl.rsqrt(squares / (2 * half) + eps)[:, None]
    one = one * root * (tl.load(weight_ptr + col).to(tl.float32) + offset)[None, :]
    other = other * root * (tl.load(weight_ptr + half + col).to(tl.float32) + offset)[None, :]
    cos_ptr += (token % angles) * cos_stride + col
    sin_ptr += (token % angles) * sin_stride + col
    cos, sin = tl.load(cos_ptr).to(tl.float32), tl.load(sin_ptr).to(tl.float32)
    turned = one * cos[None, :] - other * sin[None, :]
    cos, sin = tl.load(cos_ptr + half).to(tl.float32), tl.load(sin_ptr + half).to(tl.float32)
    partner = other * cos[None, :] + one * sin[None, :]
    y_ptr += token * heads * (2 * half)
    tl.store(y_ptr + at, turned.to(y_ptr.dtype.element_ty), mask=there)
    tl.store(y_ptr + half + at, partner.to(y_ptr.dtype.element_ty), mask=there)
