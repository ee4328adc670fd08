"""Device code of :mod:`backbay_optimizer.kernels.max_pool`; importing it imports Triton.

Images with channels last are a table of pixels and channels. A program writes ``block_p`` pixels of
``block_c`` channels: forward of the result, backward of the gradient, which it gathers from the
windows that have the pixel. So nothing is added up by several programs.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _wide(at, is_large: tl.constexpr):
    """Return an index as one of 64 bits where offsets need as many: those take longer."""
    return tl.cast(at, tl.int64 if is_large else tl.int32)


@jit
def max_pool_kernel(
    x_ptr, y_ptr, offsets_ptr, pixels, units,
    height: tl.constexpr, width: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr,
    size_y: tl.constexpr, size_x: tl.constexpr, stride_y: tl.constexpr, stride_x: tl.constexpr,
    padding_y: tl.constexpr, padding_x: tl.constexpr, multiple: tl.constexpr,
    is_large: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
):
    """The largest value of each window, and which of the window's places it is in.

    As torch has it, that is the first of several, and the last NaN if there is one.
    """
    channels = units * multiple
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    pixel = tl.program_id(0) * block_p + tl.arange(0, block_p)
    right = pixel % out_width
    down = pixel // out_width % out_height
    image = pixel // out_width // out_height
    real = (pixel < pixels)[:, None] & (col < channels)[None, :]
    best = tl.full([block_p, block_c], float("-inf"), tl.float32)
    offsets = tl.full([block_p, block_c], -1, tl.int32)
    for k in tl.static_range(size_y * size_x):
        h = down * stride_y - padding_y + k // size_x
        w = right * stride_x - padding_x + k % size_x
        there = real & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = _wide((image * height + h) * width + w, is_large) * channels
        x = tl.load(x_ptr + at[:, None] + col[None, :], mask=there, other=0.0).to(tl.float32)
        is_nan = x != x  # noqa: PLR0124 (that is how)
        taken = there & ((x > best) | is_nan | (offsets < 0))
        best = tl.where(taken, x, best)
        offsets = tl.where(taken, k, offsets)
    to = (_wide(pixel, is_large) * channels)[:, None] + col[None, :]
    tl.store(y_ptr + to, best.to(y_ptr.dtype.element_ty), mask=real)
    tl.store(offsets_ptr + to, offsets.to(tl.int8), mask=real)


@jit
def max_pool_backward_kernel(
    dy_ptr, offsets_ptr, dx_ptr, pixels, units,
    height: tl.constexpr, width: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr,
    size_y: tl.constexpr, size_x: tl.constexpr, stride_y: tl.constexpr, stride_x: tl.constexpr,
    padding_y: tl.constexpr, padding_x: tl.constexpr, multiple: tl.constexpr,
    is_large: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
):
    """The gradient: of each pixel, the sum over the windows that took it."""
    channels = units * multiple
    reach_y: tl.constexpr = (size_y + stride_y - 1) // stride_y
    reach_x: tl.constexpr = (size_x + stride_x - 1) // stride_x
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    pixel = tl.program_id(0) * block_p + tl.arange(0, block_p)
    w = pixel % width + padding_x
    h = pixel // width % height + padding_y
    image = pixel // width // height
    real = (pixel < pixels)[:, None] & (col < channels)[None, :]
    total = tl.zeros([block_p, block_c], tl.float32)
    for r in tl.static_range(reach_y * reach_x):
        down = h // stride_y - r // reach_x
        right = w // stride_x - r % reach_x
        row = h - down * stride_y
        column = w - right * stride_x
        seen = (down >= 0) & (down < out_height) & (right >= 0) & (right < out_width)
        seen = seen & (row < size_y) & (column < size_x)
        there = real & seen[:, None]
        at = _wide((image * out_height + down) * out_width + right, is_large) * channels
        at = at[:, None] + col[None, :]
        offset = tl.load(offsets_ptr + at, mask=there, other=-1).to(tl.int32)
        dy = tl.load(dy_ptr + at, mask=there, other=0.0).to(tl.float32)
        total += tl.where(offset == (row * size_x + column)[:, None], dy, 0.0)
    to = (_wide(pixel, is_large) * channels)[:, None] + col[None, :]
    tl.store(dx_ptr + to, total.to(dx_ptr.dtype.element_ty), mask=real)
