"""Device code of :mod:`backbay_optimizer.kernels.max_pool`; importing it imports Triton.

Images with channels last are a table of pixels and channels. A program writes ``block_p`` pixels of
``block_c`` channels: forward of the result, backward of the gradient, which it gathers from the
windows that have the pixel. So nothing is added up by several programs. Backward these are pixels
that have the same places in their windows, such as those of even rows and odd columns: what takes
no part is then left out when the kernel is compiled.
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
    # Until one is larger, the first place that is in the image: all may be minus infinity.
    first = tl.maximum(padding_y - down * stride_y, 0) * size_x
    first += tl.maximum(padding_x - right * stride_x, 0)
    offsets = tl.zeros([block_p, block_c], tl.int32) + first[:, None]
    for k in tl.static_range(size_y * size_x):
        h = down * stride_y - padding_y + k // size_x
        w = right * stride_x - padding_x + k % size_x
        there = real & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = _wide((image * height + h) * width + w, is_large) * channels
        x = tl.load(x_ptr + at[:, None] + col[None, :], mask=there, other=float("-inf"))
        x = x.to(tl.float32)
        taken = (x > best) | (x != x)  # noqa: PLR0124 (it is NaN)
        best = tl.where(taken, x, best)
        offsets = tl.where(taken, k, offsets)
    to = (_wide(pixel, is_large) * channels)[:, None] + col[None, :]
    tl.store(y_ptr + to, best.to(y_ptr.dtype.element_ty), mask=real)
    tl.store(offsets_ptr + to, offsets.to(tl.int8), mask=real)


@jit
def max_pool_backward_kernel(
    dy_ptr, offsets_ptr, dx_ptr, cells, units,
    height: tl.constexpr, width: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr,
    size_y: tl.constexpr, size_x: tl.constexpr, stride_y: tl.constexpr, stride_x: tl.constexpr,
    padding_y: tl.constexpr, padding_x: tl.constexpr, multiple: tl.constexpr,
    is_large: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
):
    """The gradient: of each pixel, the sum over the windows that took it.

    A cell has as many pixels as windows are apart, and a program one pixel of each of its cells.
    """
    apart: tl.constexpr = stride_y * stride_x
    cell = tl.program_id(0) // apart * block_p + tl.arange(0, block_p)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    for k in tl.static_range(apart):
        if tl.program_id(0) % apart == k:
            _pixels(
                dy_ptr, offsets_ptr, dx_ptr, cell, cells, col, units * multiple,
                k // stride_x, k % stride_x, height, width, out_height, out_width,
                size_y, size_x, stride_y, stride_x, padding_y, padding_x,
                is_large, block_p, block_c,
            )


@jit
def _pixels(
    dy_ptr, offsets_ptr, dx_ptr, cell, cells, col, channels,
    y: tl.constexpr, x: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr,
    size_y: tl.constexpr, size_x: tl.constexpr, stride_y: tl.constexpr, stride_x: tl.constexpr,
    padding_y: tl.constexpr, padding_x: tl.constexpr,
    is_large: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
):
    """Write the pixel of each cell that is in its row ``y`` and column ``x``."""
    cells_x: tl.constexpr = (width + padding_x + stride_x - 1) // stride_x
    cells_y: tl.constexpr = (height + padding_y + stride_y - 1) // stride_y
    right = cell % cells_x
    down = cell // cells_x % cells_y
    image = cell // cells_x // cells_y
    inside = (cell < cells)[:, None] & (col < channels)[None, :]
    total = tl.zeros([block_p, block_c], tl.float32)
    for row in tl.static_range(y, size_y, stride_y):
        for column in tl.static_range(x, size_x, stride_x):
            i = down - row // stride_y
            j = right - column // stride_x
            seen = (i >= 0) & (i < out_height) & (j >= 0) & (j < out_width)
            there = inside & seen[:, None]
            at = _wide((image * out_height + i) * out_width + j, is_large) * channels
            at = at[:, None] + col[None, :]
            offset = tl.load(offsets_ptr + at, mask=there, other=-1)
            dy = tl.load(dy_ptr + at, mask=there, other=0.0).to(tl.float32)
            total += tl.where(offset == row * size_x + column, dy, 0.0)
    h = down * stride_y + y - padding_y
    w = right * stride_x + x - padding_x
    real = inside & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
    to = _wide((image * height + h) * width + w, is_large) * channels
    tl.store(dx_ptr + to[:, None] + col[None, :], total.to(dx_ptr.dtype.element_ty), mask=real)
