"""Device code of :mod:`backbay_optimizer.kernels.batch_norm`; importing it imports Triton.

Images with channels last are a table of ``rows`` (all pixels of all images) and ``channels``. A
*tile* is ``block_r`` rows of ``block_c`` channels. Programs of one block of channels take tiles in
turns, from the last one to the first: at any time all of them read the same part of memory.

Why from the last: a tensor that was just written, or a part of it, is in the L2 cache, the end of
it for certain. What reads the tensor next begins at its first element, and finds the part there
that was read last.

A tile's numbers are added up in registers, element by element, and only at a program's end over
the rows of the tile. Squares are of what is shifted by the mean of a program's first tile (Chan,
Golub and LeVeque, Algorithms for Computing the Sample Variance, 1983): nothing cancels unless a
tile is far from all that follow.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

from backbay_optimizer.kernels.group_norm_silu_device import sigmoid

jit: Any = triton.jit
_RELU = tl.constexpr(1)
_SILU = tl.constexpr(2)
_HARDSWISH = tl.constexpr(3)
_BEND = tl.constexpr(3.0)


@jit
def _load(pointer, tile, rows, channels, row, col, block_r: tl.constexpr, is_whole: tl.constexpr):
    """Values of a tile in float32, 0 where there are none."""
    from_ptr = pointer + tl.cast(tile, tl.int64) * (block_r * channels)
    at = row[:, None] * channels + col[None, :]
    if is_whole:
        return tl.load(from_ptr + at).to(tl.float32)
    else:  # noqa: RET505 (Triton compiles one of the two)
        return tl.load(
            from_ptr + at,
            mask=_inside(tile, rows, channels, row, col, block_r, is_whole),
            other=0.0,
        ).to(tl.float32)


@jit
def _inside(tile, rows, channels, row, col, block_r: tl.constexpr, is_whole: tl.constexpr):
    """Which elements of a tile there are."""
    if is_whole:
        return (row >= 0)[:, None] & (col >= 0)[None, :]
    else:  # noqa: RET505
        return (
            (row < rows - tl.cast(tile, tl.int64) * block_r)[:, None]
            & (col < channels)[None, :]
            & (tile >= 0)
        )


@jit
def batch_norm_statistics_kernel(
    x_ptr, partial_ptr, rows, units,
    multiple: tl.constexpr, is_whole: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
    stages: tl.constexpr,
):
    """Of each channel in each program's rows: the mean, and the sum of squares around it.

    ``partial`` is (2, channels, programs). ``units`` times ``multiple`` are the channels.
    """
    channels = units * multiple
    program, programs = tl.program_id(1), tl.num_programs(1)
    col = tl.program_id(0) * block_c + tl.arange(0, block_c)
    row = tl.arange(0, block_r)
    tiles = (rows - 1) // block_r + 1  # tl.cdiv adds first, beyond 32 bits
    last = tiles - 1 - program
    count = (tiles - program + programs - 1) // programs
    here = tl.minimum(rows - tl.cast(last, tl.int64) * block_r, block_r).to(tl.float32)
    x = _load(x_ptr, last, rows, channels, row, col, block_r, is_whole)
    # Rounded to what elements are of: differences of 16 bits are so exact, and so are their sums,
    # which else would all be rounded the same way once they are large.
    centre = (tl.sum(x, 0) / here).to(x_ptr.dtype.element_ty).to(tl.float32)
    off = x - centre[None, :]
    if not is_whole:
        off = tl.where(_inside(last, rows, channels, row, col, block_r, is_whole), off, 0.0)
    sums = off
    squares = off * off
    for step in tl.range(1, count, num_stages=stages):
        tile = last - step * programs
        x = _load(x_ptr, tile, rows, channels, row, col, block_r, is_whole)
        off = x - centre[None, :]
        if not is_whole:
            off = tl.where(_inside(tile, rows, channels, row, col, block_r, is_whole), off, 0.0)
        sums += off
        squares += off * off
    missing = tl.where(program == 0, tl.cast(tiles, tl.int64) * block_r - rows, 0)
    there = tl.maximum(tl.cast(count, tl.int64) * block_r - missing, 1).to(tl.float32)
    shift = tl.sum(sums, 0) / there
    to_ptr = partial_ptr + col * programs + program
    real = col < channels
    tl.store(to_ptr, centre + shift, mask=real)
    squares_ptr = to_ptr + channels * programs
    tl.store(squares_ptr, tl.maximum(tl.sum(squares, 0) - shift * shift * there, 0.0), mask=real)


@jit
def batch_norm_sums_kernel(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, partial_ptr, rows, units,
    activation: tl.constexpr, multiple: tl.constexpr, is_whole: tl.constexpr,
    block_r: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
):
    """Of each channel in each program's rows: sums of ``g`` and of ``g * (x - mean) * rstd``.

    ``g`` is the gradient before the activation. ``partial`` is (2, channels, programs).
    """
    channels = units * multiple
    program, programs = tl.program_id(1), tl.num_programs(1)
    col = tl.program_id(0) * block_c + tl.arange(0, block_c)
    row = tl.arange(0, block_r)
    real = col < channels
    mean = tl.load(mean_ptr + col, mask=real, other=0.0)[None, :]
    rstd = tl.load(rstd_ptr + col, mask=real, other=0.0)
    scale = (rstd * tl.load(weight_ptr + col, mask=real, other=0.0).to(tl.float32))[None, :]
    bias = tl.load(bias_ptr + col, mask=real, other=0.0).to(tl.float32)[None, :]
    tiles = (rows - 1) // block_r + 1  # tl.cdiv adds first, beyond 32 bits
    last = tiles - 1 - program
    count = (tiles - program + programs - 1) // programs
    sums = tl.zeros([block_r, block_c], tl.float32)
    products = tl.zeros([block_r, block_c], tl.float32)
    for step in tl.range(0, count, num_stages=stages):
        tile = last - step * programs
        g = _load(dy_ptr, tile, rows, channels, row, col, block_r, is_whole)
        off = _load(x_ptr, tile, rows, channels, row, col, block_r, is_whole) - mean
        if activation != 0:
            g = _before(g, off * scale + bias, activation)
        sums += g
        products += g * off
    to_ptr = partial_ptr + col * programs + program
    tl.store(to_ptr, tl.sum(sums, 0), mask=real)
    tl.store(to_ptr + channels * programs, tl.sum(products, 0) * rstd, mask=real)


@jit
def _before(dy, z, activation: tl.constexpr):
    """The gradient before an activation of ``z``; as torch has it where that bends, and for NaN."""
    if activation == _RELU:
        return tl.where(z <= 0.0, 0.0, dy)
    elif activation == _SILU:  # noqa: RET505
        s = sigmoid(z)
        return dy * (s * (1.0 + z * (1.0 - s)))
    else:
        tl.static_assert(activation == _HARDSWISH)
        inner = tl.where(z < _BEND, dy * (z / _BEND + 0.5), dy)
        return tl.where(z <= -_BEND, 0.0, inner)
