"""Device code of :mod:`backbay_optimizer.kernels.rotated_heads`; importing it imports Triton."""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def rotated_heads_kernel(
    x_ptr, other_ptr, weight_ptr, other_weight_ptr, cos_ptr, sin_ptr, y_ptr, other_y_ptr,
    heads, other_heads, angles, x_stride, other_stride, cos_stride, sin_stride, eps, offset,
    half: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, is_alone: tl.constexpr,
):
    """A block of the heads of a token in one tensor or, behind its ``blocks``, in the other.

    ``angles`` are rows of angles, heads are of twice ``half``.
    """
    eps = tl.cast(eps, tl.float32)  # compiled graphs pass numbers of 64 bits
    offset = tl.cast(offset, tl.float32)
    token = tl.program_id(0).to(tl.int64)
    cos_ptr += (token % angles) * cos_stride
    sin_ptr += (token % angles) * sin_stride
    number = tl.program_id(1)
    if is_alone or number < blocks:
        turn(
            x_ptr + token * x_stride, weight_ptr, cos_ptr, sin_ptr,
            y_ptr + token * heads * (2 * half), number * block, heads, eps, offset, half, block,
        )
    else:
        turn(
            other_ptr + token * other_stride, other_weight_ptr, cos_ptr, sin_ptr,
            other_y_ptr + token * other_heads * (2 * half), (number - blocks) * block, other_heads,
            eps, offset, half, block,
        )


@jit
def turn(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, y_ptr, first, heads, eps, offset,
    half: tl.constexpr, block: tl.constexpr,
):
    """Normalise and turn heads of a token from the first on."""
    head = first + tl.arange(0, block)
    col = tl.arange(0, half)
    at = head[:, None] * (2 * half) + col[None, :]
    there = head[:, None] < heads
    # All is asked for before anything is waited for.
    one = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + half + at, mask=there, other=0.0).to(tl.float32)
    cos, sin = tl.load(cos_ptr + col).to(tl.float32), tl.load(sin_ptr + col).to(tl.float32)
    other_cos = tl.load(cos_ptr + half + col).to(tl.float32)
    other_sin = tl.load(sin_ptr + half + col).to(tl.float32)
    weight = tl.load(weight_ptr + col).to(tl.float32) + offset
    other_weight = tl.load(weight_ptr + half + col).to(tl.float32) + offset
    root = tl.rsqrt(tl.sum(one * one + other * other, 1) / (2 * half) + eps)[:, None]
    one = one * root * weight[None, :]
    other = other * root * other_weight[None, :]
    turned = one * cos[None, :] - other * sin[None, :]
    tl.store(y_ptr + at, turned.to(y_ptr.dtype.element_ty), mask=there)
    turned = other * other_cos[None, :] + one * other_sin[None, :]
    tl.store(y_ptr + half + at, turned.to(y_ptr.dtype.element_ty), mask=there)
