# ruff: noqa: RUF005 (Triton knows no unpacking)
"""Device code of :mod:`backbay_optimizer.kernels.depthwise_convolution`; it imports Triton.

Channels are last. A *strip* is ``across`` pixels side by side in one row of what is written; a
program computes ``block_r`` strips of ``block_c`` channels. What is read of a row is read once for
a strip, and kept in registers for all pixels that it is a part of: with a filter of 7 and strips of
7 that is 1.9 pixels for each that is written in place of 7.

What limits it is how many instructions are issued, so what is known is not computed: ``channels``
is a constant, which makes addresses of one row immediate, and columns are compared with the borders
only where a strip can reach beyond them.
"""

# A kernel takes many arguments, which are read best side by side.
# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _strips(height, each, strips, block_r: tl.constexpr):
    """Image, row and place in the row of a program's strips, and which of them exist."""
    strip = tl.program_id(0) * block_r + tl.arange(0, block_r)
    line = strip // each
    return (line // height).to(tl.int64), line % height, strip % each, strip < strips


@jit
def _alike(value, count: tl.constexpr):
    """Return a tuple of so many times a value."""
    made = (value,)
    for _ in tl.static_range(1, count):
        made = made + (value,)
    return made


@jit
def _taps(weight_ptr, col, real, size_x: tl.constexpr, channels: tl.constexpr):
    """One row of the filters."""
    made = (tl.load(weight_ptr + col, mask=real, other=0.0)[None, :],)
    for tap in tl.static_range(1, size_x):
        made = made + (tl.load(weight_ptr + tap * channels + col, mask=real, other=0.0)[None, :],)
    return made


@jit
def depthwise_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, strips, height, width, out_height, out_width, each,
    channels: tl.constexpr, even: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, padding_y: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):
    """Convolve each channel with a filter of its own; ``weight`` is (taps, channels), float32.

    ``even`` says that strips fill rows.
    """
    image, row, at, exists = _strips(out_height, each, strips, block_r)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    real = col < channels
    whole: tl.constexpr = channels % block_c == 0
    first = at * across
    left = first * stride_x - padding_x
    start = tl.zeros([block_r, block_c], tl.float32)
    if bias_ptr is not None:
        start += tl.load(bias_ptr + col, mask=real, other=0.0).to(tl.float32)[None, :]
    sums = _alike(start, across)
    for tap_y in range(size_y):
        y = row * stride_y + tap_y - padding_y
        inside_y = exists & (y >= 0) & (y < height)
        from_ptr = x_ptr + ((image * height + y) * width + left)[:, None] * channels + col[None, :]
        taps = _taps(weight_ptr + tap_y * size_x * channels, col, real, size_x, channels)
        for j in tl.static_range((across - 1) * stride_x + size_x):
            inside = inside_y
            if j < padding_x:
                inside = inside & (left + j >= 0)
            if j > (across - 1) * stride_x - padding_x + size_x - 1 - padding_x or not even:
                inside = inside & (left + j < width)
            mask = inside[:, None] if whole else inside[:, None] & real[None, :]
            x = tl.load(from_ptr + j * channels, mask=mask, other=0.0).to(tl.float32)
            added = ()
            for t in tl.static_range(across):
                if (j - t * stride_x >= 0) and (j - t * stride_x < size_x):
                    added = added + (sums[t] + x * taps[j - t * stride_x],)
                else:
                    added = added + (sums[t],)
            sums = added
    line = (image * out_height + row) * out_width + first
    to_ptr = y_ptr + line[:, None] * channels + col[None, :]
    for t in tl.static_range(across):
        inside = exists if even else exists & (first + t < out_width)
        mask = inside[:, None] if whole else inside[:, None] & real[None, :]
        tl.store(to_ptr + t * channels, sums[t].to(y_ptr.dtype.element_ty), mask=mask)


@jit
def depthwise_input_kernel(
    dy_ptr, weight_ptr, dx_ptr, strips, height, width, out_height, out_width, each,
    channels: tl.constexpr, even: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, padding_y: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):
    """The gradient by what was read. ``across`` is a multiple of ``stride_x``.

    Column ``first + t`` was read through tap ``k`` for the result in column ``(first + t +
    padding - k) / stride``, where that is a whole number: ``first / stride + j``.
    """
    image, row, at, exists = _strips(height, each, strips, block_r)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    real = col < channels
    whole: tl.constexpr = channels % block_c == 0
    first = at * across
    middle = at * (across // stride_x)
    low: tl.constexpr = (size_x - 1 - padding_x) // stride_x
    high: tl.constexpr = (across - 1 + padding_x) // stride_x
    sums = _alike(tl.zeros([block_r, block_c], tl.float32), across)
    for tap_y in range(size_y):
        above = row + padding_y - tap_y
        y = above // stride_y
        inside_y = exists & (above >= 0) & (y < out_height)
        if stride_y > 1:
            inside_y = inside_y & (above % stride_y == 0)
        line = (image * out_height + y) * out_width + middle - low
        from_ptr = dy_ptr + line[:, None] * channels + col[None, :]
        taps = _taps(weight_ptr + tap_y * size_x * channels, col, real, size_x, channels)
        for j in tl.static_range(low + high + 1):
            inside = inside_y
            if j < low:
                inside = inside & (middle - low + j >= 0)
            inside = inside & (middle - low + j < out_width)
            mask = inside[:, None] if whole else inside[:, None] & real[None, :]
            dy = tl.load(from_ptr + j * channels, mask=mask, other=0.0).to(tl.float32)
            added = ()
            for t in tl.static_range(across):
                if (t + padding_x - stride_x * (j - low) >= 0) and (
                    t + padding_x - stride_x * (j - low) < size_x
                ):
                    added = added + (sums[t] + dy * taps[t + padding_x - stride_x * (j - low)],)
                else:
                    added = added + (sums[t],)
            sums = added
    line = (image * height + row) * width + first
    to_ptr = dx_ptr + line[:, None] * channels + col[None, :]
    for t in tl.static_range(across):
        inside = exists if even else exists & (first + t < width)
        mask = inside[:, None] if whole else inside[:, None] & real[None, :]
        tl.store(to_ptr + t * channels, sums[t].to(dx_ptr.dtype.element_ty), mask=mask)
