"""Device code of :mod:`backbay_optimizer.kernels.max_pool`; importing it imports Triton.

Images with channels last are a table of pixels and channels. A program writes ``block_p`` pixels of
``block_c`` channels: forward of the result, backward of the gradient, which it gathers from the
windows that have the pixel. So nothing is added up by several programs. Backward it takes pixels by
cells: a cell's windows are read once, and each of its pixels has a place in each of these that is
known when the kernel is compiled.
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
def _float32(x):
    """Return values as float32, of bfloat16 by their bits: LLVM would compare in 16, slowly."""
    if x.dtype == tl.bfloat16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        y = bits.to(tl.float32, bitcast=True)
    else:
        y = x.to(tl.float32)
    return y


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
    # Until one is larger, the first place that is in the image: all may be minus infinity.
    first = tl.maximum(padding_y - down * stride_y, 0) * size_x
    first += tl.maximum(padding_x - right * stride_x, 0)
    offsets = tl.zeros([block_p, block_c], tl.int32) + first[:, None]
    for k in tl.static_range(size_y * size_x):
        h = down * stride_y - padding_y + k // size_x
        w = right * stride_x - padding_x + k % size_x
        there = real & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = _wide((image * height + h) * width + w, is_large) * channels
        x = _float32(tl.load(x_ptr + at[:, None] + col[None, :], mask=there, other=float("-inf")))
        if k == 0:
            best = x
        else:
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

    A cell is a block of as many pixels as windows are apart, down and right. Its pixels lie in the
    same few windows, and a pixel's place in each of these is the same in every cell.
    """
    channels = units * multiple
    cells_x: tl.constexpr = (width + padding_x + stride_x - 1) // stride_x
    cells_y: tl.constexpr = (height + padding_y + stride_y - 1) // stride_y
    reach_y: tl.constexpr = (size_y + stride_y - 1) // stride_y
    reach_x: tl.constexpr = (size_x + stride_x - 1) // stride_x
    cell = tl.program_id(0) * block_p + tl.arange(0, block_p)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    right = cell % cells_x
    down = cell // cells_x % cells_y
    image = cell // cells_x // cells_y
    inside = (cell < cells)[:, None] & (col < channels)[None, :]
    offsets = ()
    dys = ()
    for r in tl.static_range(reach_y * reach_x):
        i = down - r // reach_x
        j = right - r % reach_x
        seen = (i >= 0) & (i < out_height) & (j >= 0) & (j < out_width)
        there = inside & seen[:, None]
        at = _wide((image * out_height + i) * out_width + j, is_large) * channels
        at = at[:, None] + col[None, :]
        offsets += (tl.load(offsets_ptr + at, mask=there, other=-1),)
        dys += (tl.load(dy_ptr + at, mask=there, other=0.0),)
    for k in tl.static_range(stride_y * stride_x):
        total = tl.zeros([block_p, block_c], tl.float32)
        for r in tl.static_range(reach_y * reach_x):
            row = k // stride_x + r // reach_x * stride_y
            column = k % stride_x + r % reach_x * stride_x
            if row < size_y and column < size_x:
                is_it = offsets[r] == row * size_x + column
                total += tl.where(is_it, dys[r].to(tl.float32), 0.0)
        h = down * stride_y + k // stride_x - padding_y
        w = right * stride_x + k % stride_x - padding_x
        real = inside & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        to = (_wide((image * height + h) * width + w, is_large) * channels)[:, None] + col[None, :]
        tl.store(dx_ptr + to, total.to(dx_ptr.dtype.element_ty), mask=real)
