"""Device code of :mod:`backbay_optimizer.kernels.row_norm`; importing it imports Triton.

A *tile* is ``height`` whole rows. Programs take tiles in turns, and keep in registers, in float32,
what their rows add to the gradients by weight and bias: one row of partial sums each. Everything
that is as large as ``x`` is so read once, and written once.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _load(pointer, at, inside, is_whole: tl.constexpr):
    """Values in float32, 0 where there are none."""
    if is_whole:
        return tl.load(pointer + at).to(tl.float32)
    else:  # noqa: RET505 (Triton compiles one of the two)
        return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@jit
def _sums(dy_ptr, second_ptr, third_ptr, at, inside, is_whole: tl.constexpr):
    """The gradient by what the norm gives: the sum of up to three."""
    dy = _load(dy_ptr, at, inside, is_whole)
    if second_ptr is not None:
        dy += _load(second_ptr, at, inside, is_whole)
    if third_ptr is not None:
        dy += _load(third_ptr, at, inside, is_whole)
    return dy


@jit
def row_norm_backward_kernel(
    dy_ptr, second_ptr, third_ptr, extra_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr,
    dx_ptr, dweight_ptr, dbias_ptr, rows, units, offset: tl.constexpr, multiple: tl.constexpr,
    is_whole: tl.constexpr, height: tl.constexpr, width: tl.constexpr, stages: tl.constexpr,
):
    """The gradient by ``x``, and each program's share of those by weight and bias.

    Shares are (programs, columns). ``units`` times ``multiple`` are the columns.
    """
    columns = units * multiple
    program, programs = tl.program_id(0), tl.num_programs(0)
    row, col = tl.arange(0, height)[:, None], tl.arange(0, width)[None, :]
    there = col < columns
    scale = _load(weight_ptr, col, there, is_whole) + offset
    dweight = tl.zeros([height, width], tl.float32)
    dbias = tl.zeros([height, width], tl.float32)
    tiles = (rows - 1) // height + 1  # tl.cdiv adds first, beyond 32 bits
    for tile in tl.range(program, tiles, programs, num_stages=stages):
        first = tl.cast(tile, tl.int64) * height
        at = first * columns + row * columns + col
        is_row = row < rows - first
        inside = is_row & there
        x = _load(x_ptr, at, inside, is_whole)
        dy = _sums(dy_ptr, second_ptr, third_ptr, at, inside, is_whole)
        rstd = _load(rstd_ptr, first + row, is_row, is_whole)
        scaled = dy * scale
        if mean_ptr is not None:
            n = (x - _load(mean_ptr, first + row, is_row, is_whole)) * rstd
            less = scaled - tl.sum(scaled, 1, keep_dims=True) / columns
        else:
            n = x * rstd
            less = scaled
        dx = (less - n * (tl.sum(scaled * n, 1, keep_dims=True) / columns)) * rstd
        if extra_ptr is not None:
            dx += _load(extra_ptr, at, inside, is_whole)
        if is_whole:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty))
        else:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += dy * n
        if dbias_ptr is not None:
            dbias += dy
    to = program * columns + tl.arange(0, width)
    is_column = tl.arange(0, width) < columns
    tl.store(dweight_ptr + to, tl.sum(dweight, 0), mask=is_column)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + to, tl.sum(dbias, 0), mask=is_column)


@jit
def _total(share_ptr, to_ptr, shares, columns, block_s: tl.constexpr, block_c: tl.constexpr):
    """Add the shares of some columns, always in the same order."""
    col = tl.program_id(0) * block_c + tl.arange(0, block_c)
    share = tl.arange(0, block_s)
    total = tl.zeros([block_s, block_c], tl.float32)
    for start in range(0, shares, block_s):
        inside = (start + share < shares)[:, None] & (col < columns)[None, :]
        at = (start + share)[:, None] * columns + col[None, :]
        total += tl.load(share_ptr + at, mask=inside, other=0.0)
    tl.store(to_ptr + col, tl.sum(total, 0).to(to_ptr.dtype.element_ty), mask=col < columns)


@jit
def row_norm_totals_kernel(
    dweight_shares_ptr, dbias_shares_ptr, dweight_ptr, dbias_ptr, shares, columns,
    block_s: tl.constexpr, block_c: tl.constexpr,
):
    """The gradients by weight and, in a second row of programs, by bias: the sums of shares."""
    is_weight = tl.program_id(1) == 0
    if is_weight:
        _total(dweight_shares_ptr, dweight_ptr, shares, columns, block_s, block_c)
    if dbias_ptr is not None:
        is_bias = tl.program_id(1) == 1
        if is_bias:
            _total(dbias_shares_ptr, dbias_ptr, shares, columns, block_s, block_c)
