# ruff: noqa: RUF005 (Triton knows no unpacking)
"""Device code of :mod:`backbay_optimizer.kernels.depthwise_convolution`; it imports Triton.

Channels are last. A *strip* is ``across`` pixels side by side, and a program goes down the images
with ``block_r`` strips of ``block_c`` channels, step by step. In step ``m`` it meets row ``m`` of
the results, and the ``stride_y`` rows of the images from ``m * stride_y - padding_y`` on. An image
row ``m * stride_y + r - padding_y`` meets the result row ``m - i`` through the row ``r + i *
stride_y`` of the filters, so a filter spans ``reach`` steps. What a step reads is read once, and
what later steps need of it is kept in registers: unfinished results in the forward, rows of ``dy``
in the gradients.

What limits it is how many instructions are issued, so what is known is not computed: ``channels``
is a constant, which makes addresses of one row immediate, and columns are compared with the borders
only where a strip can reach beyond them.

What limits how long compilation takes is Triton's coalescing, which looks, for each load and store,
at all that is connected with it. So what is read or written side by side is a loop here that LLVM
unrolls, as it does loops of few rounds: one load to Triton. Such a loop turns a tuple round, and
never the one that the loop over steps carries: that one would then move it in each step.
"""

# A kernel takes many arguments, which are read best side by side.
# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit

_UNROLLED = tl.constexpr(8)
"""Rounds of a loop that LLVM is sure to unroll, with comparisons and a load in each."""


@jit
def _strips(block, strips, each, chunks, block_r: tl.constexpr):
    """Image, chunk of its rows and place in a row of a block's strips, and which of them exist."""
    strip = block * block_r + tl.arange(0, block_r)
    line = strip // each
    return (line // chunks).to(tl.int64), line % chunks, strip % each, strip < strips


@jit
def _alike(value, count: tl.constexpr):
    """Return a tuple of so many times a value."""
    made = ()
    for _ in tl.static_range(count):
        made = made + (value,)
    return made


@jit
def _floats(values, count: tl.constexpr):
    """Return a tuple as float32."""
    made = ()
    for i in tl.static_range(count):
        made = made + (values[i].to(tl.float32),)
    return made


@jit
def _total(values, count: tl.constexpr):
    """Return the sum of a tuple."""
    total = values[0]
    for i in tl.static_range(1, count):
        total += values[i]
    return total


@jit
def _pixels(
    from_ptr, known, column, width, channels: tl.constexpr, low: tl.constexpr, high: tl.constexpr,
    count: tl.constexpr,
):
    """Read a part of a strip."""
    made = _alike(tl.zeros(from_ptr.shape, from_ptr.dtype.scalar.element_ty), count)
    for j in range(count):
        mask = known & ((j >= low) | (column + j >= 0))[:, None]
        mask = mask & ((j < high) | (column + j < width))[:, None]
        made = made[1:] + (tl.load(from_ptr + j * channels, mask=mask, other=0.0),)
    return made


@jit
def _row(
    from_ptr, y, inside, height, column, width, col, channels: tl.constexpr, block_c: tl.constexpr,
    low: tl.constexpr, high: tl.constexpr, count: tl.constexpr,
):
    """Read a strip of ``count`` pixels from ``column`` on, of row ``y``.

    The first ``low`` of a row may be left of the image, and those from ``high`` on right of it.
    """
    whole: tl.constexpr = channels % block_c == 0
    inside = inside & (y >= 0) & (y < height)
    known = inside[:, None] if whole else inside[:, None] & (col < channels)[None, :]
    row_ptr = from_ptr + ((y * width + column) * channels)[:, None]
    made = ()
    for begin in tl.static_range(0, count, _UNROLLED):
        made = made + _pixels(
            row_ptr + begin * channels, known, column + begin, width, channels, low - begin,
            high - begin,
            count - begin if count - begin < _UNROLLED else _UNROLLED,  # noqa: FURB136 (a constant)
        )
    return made


@jit
def _rows(
    from_ptr, y, number: tl.constexpr, inside, height, column, width, col, channels: tl.constexpr,
    block_c: tl.constexpr, low: tl.constexpr, high: tl.constexpr, count: tl.constexpr,
):
    """Read a strip of so many rows from ``y`` on."""
    made = ()
    for r in tl.static_range(number):
        made = made + _row(
            from_ptr, y + r, inside, height, column, width, col, channels, block_c, low, high,
            count,
        )
    return made


@jit
def _write(
    to_ptr, values, inside_y, column, width, col, channels: tl.constexpr, block_c: tl.constexpr,
    even: tl.constexpr, across: tl.constexpr,
):
    """Write a strip."""
    whole: tl.constexpr = channels % block_c == 0
    values = values[:across]
    for t in range(across):
        inside = inside_y if even else inside_y & (column + t < width)
        mask = inside[:, None] if whole else inside[:, None] & (col < channels)[None, :]
        tl.store(to_ptr + t * channels, values[0].to(to_ptr.dtype.element_ty), mask=mask)
        values = values[1:] + values[:1]


@jit
def _taps(
    weight_ptr, col, channels: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    block_r: tl.constexpr,
):
    """All filters, as blocks of equal rows."""
    cols = col[None, :] + tl.zeros([block_r, 1], tl.int32)
    from_ptr = weight_ptr + cols
    mask = cols < channels
    made = ()
    for y in tl.static_range(size_y):
        row = _alike(tl.zeros(cols.shape, tl.float32), size_x)
        for x in range(size_x):
            tap = tl.load(from_ptr + (y * size_x + x) * channels, mask=mask, other=0.0)
            row = row[1:] + (tap.to(tl.float32),)
        made = made + row
    return made


@jit
def _dot(total, xs, ys, count: tl.constexpr):
    """Add a product of two tuples."""
    for i in tl.static_range(count):
        total = tl.fma(xs[i], ys[i], total)
    return total


@jit
def _convolved_row(
    sums, xs, taps, size_x: tl.constexpr, stride_x: tl.constexpr, across: tl.constexpr,
):
    made = ()
    for t in tl.static_range(across):
        seen = xs[t * stride_x : t * stride_x + size_x]
        made = made + (_dot(sums[t], seen, taps, size_x),)
    return made


@jit
def _convolved(
    sums, xs, taps, r: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, across: tl.constexpr,
):
    """Add a row of an image, the ``r``-th of its step, to the results that it meets."""
    made = ()
    for i in tl.static_range((size_y + stride_y - 1) // stride_y):
        row = sums[i * across : (i + 1) * across]
        if r + i * stride_y < size_y:
            met = taps[(r + i * stride_y) * size_x : (r + i * stride_y + 1) * size_x]
            row = _convolved_row(row, xs, met, size_x, stride_x, across)
        made = made + row
    return made


@jit
def _spread(
    sums, dys, taps, low: tl.constexpr, size_x: tl.constexpr, stride_x: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr,
):
    """Add a row of ``dy``, through a row of the filters, to one of the gradient by images."""
    made = ()
    for t in tl.static_range(across):
        value = sums[t]
        for n in tl.static_range(size_x):
            if (t + padding_x - (size_x - 1 - n)) % stride_x == 0:
                value = tl.fma(
                    dys[low + (t + padding_x - (size_x - 1 - n)) // stride_x],
                    taps[size_x - 1 - n], value,
                )
        made = made + (value,)
    return made


@jit
def _correlated_row(
    sums, xs, dys, size_x: tl.constexpr, stride_x: tl.constexpr, across: tl.constexpr,
):
    made = ()
    for k in tl.static_range(size_x):
        seen = xs[k : k + across * stride_x : stride_x]
        made = made + (_dot(sums[k], seen, dys, across),)
    return made


@jit
def _correlated(
    sums, xs, dys, r: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, across: tl.constexpr,
):
    """Add a row of an image, the ``r``-th of its step, to the filters' rows that it meets."""
    made = ()
    for k in tl.static_range(size_y):
        row = sums[k * size_x : (k + 1) * size_x]
        if k % stride_y == r:
            met = dys[k // stride_y * across : (k // stride_y + 1) * across]
            row = _correlated_row(row, xs, met, size_x, stride_x, across)
        made = made + row
    return made


@jit
def depthwise_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, strips, height, width, out_height, out_width, each, chunks,
    rows, begin, steps,
    channels: tl.constexpr, even: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, padding_y: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):
    """Convolve each channel with a filter of its own; ``weight`` is (taps, channels).

    A strip has ``rows`` of results; ``even`` says that strips fill rows.
    """
    reach: tl.constexpr = (size_y + stride_y - 1) // stride_y
    wide: tl.constexpr = (across - 1) * stride_x + size_x
    high: tl.constexpr = wide - padding_x if even else 0
    image, chunk, at, exists = _strips(tl.program_id(0), strips, each, chunks, block_r)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    first = at * across
    left = first * stride_x - padding_x
    start = tl.zeros([block_r, block_c], tl.float32)
    if bias_ptr is not None:
        start += tl.load(bias_ptr + col, mask=col < channels, other=0.0).to(tl.float32)[None, :]
    taps = _taps(weight_ptr, col, channels, size_y, size_x, block_r)
    from_ptr = x_ptr + (image * height * width * channels)[:, None] + col[None, :]
    to_ptr = y_ptr + (image * out_height * out_width * channels)[:, None] + col[None, :]
    top = chunk * rows
    bottom = tl.minimum(top + rows, out_height)
    sums = _alike(start, reach * across)
    y = (top + begin) * stride_y - padding_y
    ahead = _rows(
        from_ptr, y, stride_y, exists, height, left, width, col, channels, block_c, padding_x,
        high, wide,
    )
    for step in range(steps):
        m = top + begin + step
        now = ahead
        ahead = _rows(
            from_ptr, (m + 1) * stride_y - padding_y, stride_y, exists & (step < steps - 1),
            height, left, width, col, channels, block_c, padding_x, high, wide,
        )
        for r in tl.static_range(stride_y):
            xs = _floats(now[r * wide : (r + 1) * wide], wide)
            sums = _convolved(sums, xs, taps, r, size_y, size_x, stride_y, stride_x, across)
        done = m - (reach - 1)
        _write(
            to_ptr + ((done * out_width + first) * channels)[:, None], sums[(reach - 1) * across :],
            exists & (done >= top) & (done < bottom), first, out_width, col, channels, block_c,
            even, across,
        )
        sums = _alike(start, across) + sums[: (reach - 1) * across]
    for i in tl.static_range(1, reach):
        done = top + begin + steps - i
        _write(
            to_ptr + ((done * out_width + first) * channels)[:, None],
            sums[i * across : (i + 1) * across], exists & (done >= top) & (done < bottom), first,
            out_width, col, channels, block_c, even, across,
        )


@jit
def depthwise_input_kernel(
    dy_ptr, weight_ptr, dx_ptr, strips, height, width, out_height, out_width, each, chunks,
    rows, begin,
    channels: tl.constexpr, even: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, padding_y: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):
    """The gradient by what was read. ``across`` is a multiple of ``stride_x``.

    Column ``first + t`` was read through tap ``k`` for the result in column ``(first + t +
    padding - k) / stride``, where that is a whole number: ``first / stride + j``.
    """
    reach: tl.constexpr = (size_y + stride_y - 1) // stride_y
    low: tl.constexpr = (size_x - 1 - padding_x) // stride_x
    high: tl.constexpr = (across - 1 + padding_x) // stride_x
    seen: tl.constexpr = low + high + 1
    image, chunk, at, exists = _strips(tl.program_id(0), strips, each, chunks, block_r)
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    first = at * across
    left = at * (across // stride_x) - low
    zeros = tl.zeros([block_r, block_c], tl.float32)
    taps = _taps(weight_ptr, col, channels, size_y, size_x, block_r)
    from_ptr = dy_ptr + (image * out_height * out_width * channels)[:, None] + col[None, :]
    to_ptr = dx_ptr + (image * height * width * channels)[:, None] + col[None, :]
    top = begin + chunk * rows
    kept = ()
    for i in tl.static_range(1, reach):
        kept = kept + _floats(_row(
            from_ptr, top - i, exists, out_height, left, out_width, col, channels, block_c, low, 0,
            seen,
        ), seen)
    ahead = _row(
        from_ptr, top, exists, out_height, left, out_width, col, channels, block_c, low, 0, seen,
    )
    for step in range(rows):
        m = top + step
        kept = _floats(ahead, seen) + kept
        ahead = _row(
            from_ptr, m + 1, exists & (step < rows - 1), out_height, left, out_width, col,
            channels, block_c, low, 0, seen,
        )
        for r in tl.static_range(stride_y):
            sums = _alike(zeros, across)
            for i in tl.static_range(reach):
                if r + i * stride_y < size_y:
                    met = taps[(r + i * stride_y) * size_x : (r + i * stride_y + 1) * size_x]
                    sums = _spread(
                        sums, kept[i * seen : (i + 1) * seen], met, low, size_x, stride_x,
                        padding_x, across,
                    )
            y = m * stride_y + r - padding_y
            _write(
                to_ptr + ((y * width + first) * channels)[:, None], sums,
                exists & (y >= 0) & (y < height), first, width, col, channels, block_c, even,
                across,
            )
        kept = kept[: (reach - 1) * seen]


@jit
def depthwise_weight_kernel(
    dy_ptr, x_ptr, partial_ptr, strips, height, width, out_height, out_width, each, chunks,
    rows, begin, blocks,
    channels: tl.constexpr, even: tl.constexpr, size_y: tl.constexpr, size_x: tl.constexpr,
    stride_y: tl.constexpr, stride_x: tl.constexpr, padding_y: tl.constexpr,
    padding_x: tl.constexpr, across: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):
    """The gradients by the filters and the bias, as each program's part of both.

    ``partial`` is (programs, taps + 1, channels), float32. A program has ``blocks`` of strips, and
    a strip has ``rows`` steps.
    """
    reach: tl.constexpr = (size_y + stride_y - 1) // stride_y
    wide: tl.constexpr = (across - 1) * stride_x + size_x
    high: tl.constexpr = wide - padding_x if even else 0
    dy_high: tl.constexpr = across if even else 0
    col = tl.program_id(1) * block_c + tl.arange(0, block_c)
    sums = _alike(tl.zeros([block_r, block_c], tl.float32), size_y * size_x + 1)
    for block in range(blocks):
        image, chunk, at, exists = _strips(
            tl.program_id(0) * blocks + block, strips, each, chunks, block_r
        )
        first = at * across
        left = first * stride_x - padding_x
        dy_from_ptr = dy_ptr + (image * out_height * out_width * channels)[:, None] + col[None, :]
        x_from_ptr = x_ptr + (image * height * width * channels)[:, None] + col[None, :]
        top = begin + chunk * rows
        kept = ()
        for i in tl.static_range(1, reach):
            dys = _floats(_row(
                dy_from_ptr, top - i, exists, out_height, first, out_width, col, channels, block_c,
                0, dy_high, across,
            ), across)
            uncounted = (chunk == 0)[:, None]  # rows above the first step
            bias = sums[size_y * size_x] + tl.where(uncounted, _total(dys, across), 0.0)
            sums = sums[: size_y * size_x] + (bias,)
            kept = kept + dys
        dy_ahead = _row(
            dy_from_ptr, top, exists, out_height, first, out_width, col, channels, block_c, 0,
            dy_high, across,
        )
        x_ahead = _rows(
            x_from_ptr, top * stride_y - padding_y, stride_y, exists, height, left, width, col,
            channels, block_c, padding_x, high, wide,
        )
        for step in range(rows):
            m = top + step
            dys = _floats(dy_ahead, across)
            now = x_ahead
            more = exists & (step < rows - 1)
            dy_ahead = _row(
                dy_from_ptr, m + 1, more, out_height, first, out_width, col, channels, block_c, 0,
                dy_high, across,
            )
            x_ahead = _rows(
                x_from_ptr, (m + 1) * stride_y - padding_y, stride_y, more, height, left, width,
                col, channels, block_c, padding_x, high, wide,
            )
            bias = sums[size_y * size_x] + _total(dys, across)
            kept = dys + kept
            for r in tl.static_range(stride_y):
                xs = _floats(now[r * wide : (r + 1) * wide], wide)
                sums = _correlated(
                    sums, xs, kept, r, size_y, size_x, stride_y, stride_x, across
                ) + (bias,)
            kept = kept[: (reach - 1) * across]
    to_ptr = partial_ptr + tl.program_id(0) * ((size_y * size_x + 1) * channels) + col
    mask = col < channels
    for y in tl.static_range(size_y):
        row = sums[y * size_x : (y + 1) * size_x]
        for x in range(size_x):
            tl.store(to_ptr + (y * size_x + x) * channels, tl.sum(row[0], 0), mask=mask)
            row = row[1:] + row[:1]
    tl.store(to_ptr + size_y * size_x * channels, tl.sum(sums[size_y * size_x], 0), mask=mask)
