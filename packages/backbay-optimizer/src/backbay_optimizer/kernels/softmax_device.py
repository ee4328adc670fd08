"""Device code of :mod:`backbay_optimizer.kernels.softmax`; importing it imports Triton.

A tile is ``depth`` times ``lanes`` columns of a row, of which each thread holds whole lanes: the
maximum and the sum of a lane stay in its registers, and lanes are joined once, at the end. So there
is one exponential an element, and no barrier on the way.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _safe(m):
    """Return a maximum that can be subtracted from minus infinity."""
    return tl.where(m == float("-inf"), 0.0, m)


@jit
def _taken(m, s, x, factor):
    """Take a tile into the maximum and the sum of each lane; NaN and infinity make the sum NaN."""
    top = tl.maximum(m, tl.max(x, 0))
    safe = _safe(top)
    terms = tl.exp2((x - safe[None, :]) * factor)
    return top, s * tl.exp2((m - safe) * factor) + tl.sum(terms, 0)


@jit
def _columns(depth: tl.constexpr, lanes: tl.constexpr):
    return tl.arange(0, depth)[:, None] * lanes + tl.arange(0, lanes)[None, :]


@jit
def _row(x_ptr, stride, columns, is_aligned: tl.constexpr):
    """Return where in a row 16 bytes can be read at once, and how many columns precede that."""
    first = tl.program_id(0).to(tl.int64) * stride
    head = 0
    if not is_aligned:
        head = tl.minimum(((8 - first % 8) % 8).to(tl.int32), columns)
    return x_ptr + tl.multiple_of(first + head, 8), head


@jit
def _statistics(
    row_ptr, begin, end, columns, head, has_ends, factor,
    is_aligned: tl.constexpr, depth: tl.constexpr, lanes: tl.constexpr,
):
    """Return the maximum of a part of a row, and its sum of exponentials.

    The part is from ``begin`` to ``end``, both in eights. With ``has_ends`` the few columns before
    and behind all parts belong to it.
    """
    tile: tl.constexpr = depth * lanes
    at = _columns(depth, lanes)
    m = tl.full([lanes], float("-inf"), tl.float32)
    s = tl.zeros([lanes], tl.float32)
    whole = begin + (end - begin) // tile * tile
    for start in range(begin, whole, tile):
        m, s = _taken(m, s, tl.load(row_ptr + start + at).to(tl.float32), factor)
    if whole < end:
        there = at // 8 * 8 < end - whole  # for eights at once, which may so be read at once
        x = tl.load(row_ptr + whole + at, mask=there, other=float("-inf")).to(tl.float32)
        m, s = _taken(m, s, x, factor)
    top = tl.max(m, 0)
    total = tl.sum(s * tl.exp2((m - _safe(top)) * factor), 0)
    if not is_aligned:
        e = tl.arange(0, 16) - 8
        col = tl.where(e < 0, e, (columns - head) // 8 * 8 + e)
        there = has_ends & (col >= -head) & (col < columns - head)
        x = tl.load(row_ptr + col, mask=there, other=float("-inf")).to(tl.float32)
        within, top = top, tl.maximum(top, tl.max(x, 0))
        safe = _safe(top)
        terms = tl.exp2((x - safe) * factor)
        total = total * tl.exp2((within - safe) * factor) + tl.sum(terms, 0)
    return top, total


@jit
def softmax_statistics_kernel(
    x_ptr, m_ptr, s_ptr, columns, stride, parts, factor,
    is_log: tl.constexpr, chunk: tl.constexpr, is_aligned: tl.constexpr,
    depth: tl.constexpr, lanes: tl.constexpr,
):
    """The maximum of each part of each row, and its sum of exponentials, or that sum's logarithm.

    A part is ``chunk`` columns; the only part of a row is all of it, however long.
    """
    factor = tl.cast(factor, tl.float32)  # compiled graphs pass numbers of 64 bits
    row_ptr, head = _row(x_ptr, stride, columns, is_aligned)
    part = tl.program_id(1)
    within = (columns - head) // 8 * 8
    begin = tl.multiple_of(part * chunk, 8)
    end = within
    if parts > 1:
        end = tl.minimum(begin + chunk, within)
        begin = tl.minimum(begin, end)
    m, s = _statistics(
        row_ptr, begin, end, columns, head, part == 0, factor, is_aligned, depth, lanes
    )
    to = tl.program_id(0).to(tl.int64) * parts + part
    tl.store(m_ptr + to, m)
    tl.store(s_ptr + to, tl.log(s) if is_log else s)


@jit
def softmax_held_kernel(
    x_ptr, y_ptr, rows, columns, stride, factor, scale,
    is_log: tl.constexpr, is_aligned: tl.constexpr,
    depth: tl.constexpr, lanes: tl.constexpr, stages: tl.constexpr,
):
    """The softmax of each row, or its logarithm, where a row is one tile and stays in registers.

    The rows that a program takes next are on their way, in shared memory.
    """
    multiple: tl.constexpr = 8 if is_aligned else 1
    factor = tl.cast(factor, tl.float32)  # compiled graphs pass numbers of 64 bits
    scale = tl.cast(scale, tl.float32)
    at = _columns(depth, lanes)
    there = at // multiple * multiple < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        row_ptr = x_ptr + tl.multiple_of(tl.cast(row, tl.int64) * stride, multiple)
        to_ptr = y_ptr + tl.multiple_of(tl.cast(row, tl.int64) * columns, multiple)
        x = tl.load(row_ptr + at, mask=there, other=float("-inf")).to(tl.float32)
        x -= tl.max(tl.max(x, 0), 0)
        terms = tl.exp2(x * factor)
        total = tl.sum(tl.sum(terms, 0), 0)
        y = x * scale - tl.log(total) if is_log else terms * (1 / total)
        tl.store(to_ptr + at, y.to(y_ptr.dtype.element_ty), mask=there)


@jit
def softmax_kernel(
    x_ptr, y_ptr, columns, stride, factor, scale,
    is_log: tl.constexpr, is_aligned: tl.constexpr, depth: tl.constexpr, lanes: tl.constexpr,
):
    """The softmax of each row, or its logarithm, where a row is many tiles.

    It is read again, what was read last first: the cache still has that.
    """
    tile: tl.constexpr = depth * lanes
    multiple: tl.constexpr = 8 if is_aligned else 1
    factor = tl.cast(factor, tl.float32)  # compiled graphs pass numbers of 64 bits
    scale = tl.cast(scale, tl.float32)
    at = _columns(depth, lanes)
    row_ptr, head = _row(x_ptr, stride, columns, is_aligned)
    end = (columns - head) // 8 * 8
    m, total = _statistics(
        row_ptr, 0, end, columns, head, columns > 0, factor, is_aligned, depth, lanes
    )
    less = tl.log(total)
    part = 1 / total
    last = (columns + tile - 1) // tile - 1
    row_ptr -= head
    to_ptr = y_ptr + tl.multiple_of(tl.program_id(0).to(tl.int64) * columns, multiple)
    for k in range(last + 1):
        start = (last - k) * tile
        there = at // multiple * multiple < columns - start
        x = tl.load(row_ptr + start + at, mask=there, other=0.0).to(tl.float32) - m
        y = x * scale - less if is_log else tl.exp2(x * factor) * part
        tl.store(to_ptr + start + at, y.to(y_ptr.dtype.element_ty), mask=there)


@jit
def cross_entropy_gradient_kernel(
    x_ptr, given_ptr, target_ptr, total_ptr, columns, width, scale, block: tl.constexpr,
):
    """The gradient of each row's cross entropy, times a number, in the place of its logits.

    ``total`` are logarithms of sums of exponentials. Behind its columns a row has zeros, to the
    width, which is a multiple of 16.
    """
    factor = tl.cast(scale, tl.float32) * 1.4426950408889634  # log2(e)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * block + tl.arange(0, block)
    at = x_ptr + row * width + col
    there = col < width
    less = tl.load(total_ptr + row) * 1.4426950408889634
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    y = tl.exp2(x * factor - less)
    y = tl.where(col == tl.load(target_ptr + row), y - 1, y) * tl.load(given_ptr + row)
    tl.store(at, tl.where(col < columns, y, 0.0).to(x_ptr.dtype.element_ty), mask=there)
