"""Device code of :mod:`backbay_optimizer.kernels.group_norm_silu`; importing it imports Triton.

An image is a table of ``pixels`` rows and ``channels`` columns, in either order of memory. A *tile*
is ``span`` pixels of ``block_c`` channels; a program streams it in blocks of ``block_p`` pixels. A
*panel* is whole groups of one sample, cut into tiles. Each direction has three parts:

1. measure a tile: two float32 numbers for each channel;
2. finish a panel: from the tiles' numbers to those of each group;
3. apply them to a tile.

The parts run in one kernel in the *window* form. Programs draw tickets: ticket ``t`` measures tile
``t``, and then applies to tile ``t - lag``, whose panel is finished by the program that was last
to measure one of its tiles. Where a panel is well below the size of the L2 cache, that still has
what is applied, and memory is read once. A program waits only for tickets below its own, all of
which are drawn and measured without waiting, so it can't deadlock however many programs the GPU
runs at once. (Tickets are those of Merrill and Garland, Single-pass Parallel Prefix Scan with
Decoupled Look-back, 2016.)

In the *panel* form, for small panels, one program does a panel's three parts one after the other.

Variances are of data that is shifted by the mean of a tile's first block (Chan, Golub and LeVeque,
Algorithms for Computing the Sample Variance, 1983): one pass, and nothing cancels unless a block of
dozens of values is far from all that follows.
"""

# A kernel takes thirty arguments, which are read best side by side.
# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


# 1. Addresses


@jit
def _origin(sample, row, col, channels, pixels, last: tl.constexpr):
    """Offset of a tile's first element; 64 bits."""
    begin = sample.to(tl.int64) * channels * pixels
    if last:
        return begin + tl.cast(row, tl.int64) * channels + col
    else:  # noqa: RET505 (Triton compiles one of the two)
        return begin + tl.cast(col, tl.int64) * pixels + row


@jit
def _within(channels, pixels, block_p: tl.constexpr, block_c: tl.constexpr, last: tl.constexpr):
    """Offsets of a block's elements from its first; 32 bits."""
    rows = tl.arange(0, block_p)[:, None]
    cols = tl.arange(0, block_c)[None, :]
    if last:
        return rows * channels + cols
    else:  # noqa: RET505
        return cols * pixels + rows


@jit
def _per_channel(pointer, at, real, default: tl.constexpr):
    """Values of a tile's channels, float32; a default where there is no tensor."""
    if pointer is None:
        return tl.full(at.shape, default, tl.float32)
    else:  # noqa: RET505
        return tl.load(pointer + at, mask=real, other=0.0).to(tl.float32)


@jit
def sigmoid(z):
    """1 / (1 + exp(-z)), to 3 units in the last place, in five instructions in place of thirteen.

    Triton's ``exp`` and division handle subnormal numbers, which change no result here.
    """
    if _INTERPRETED:
        return 1.0 / (1.0 + tl.exp(-z))
    else:  # noqa: RET505
        return tl.inline_asm_elementwise(
            """
            {
                .reg .f32 t;
                mul.f32 t, $1, 0fBFB8AA3B;
                ex2.approx.ftz.f32 t, t;
                add.f32 t, t, 0f3F800000;
                rcp.approx.ftz.f32 $0, t;
            }
            """,
            "=f,f",
            [z],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


# 2. Forward


@jit
def _measure(
    x_ptr, shift_ptr, residual_ptr, total_ptr, mean_ptr, m2_ptr, sample, tile, col, end_col,
    tiles, channels, pixels, span, shift_stride, x_last: tl.constexpr,
    residual_last: tl.constexpr, y_last: tl.constexpr, block_p: tl.constexpr,
    block_c: tl.constexpr, stages: tl.constexpr,
):
    """Mean, and sum of squares around it, of each channel of a tile of ``x + shift + residual``."""
    first = tile * span
    end = tl.minimum(first + span, pixels)
    rows = tl.arange(0, block_p)
    cols = tl.arange(0, block_c)
    real = col + cols < end_col
    shift = _per_channel(shift_ptr, sample * shift_stride + col + cols, real, 0.0)
    x_at = _origin(sample, first, col, channels, pixels, x_last)
    x_in = _within(channels, pixels, block_p, block_c, x_last)
    x_step = channels if x_last else 1
    r_at = _origin(sample, first, col, channels, pixels, residual_last)
    r_in = _within(channels, pixels, block_p, block_c, residual_last)
    r_step = channels if residual_last else 1
    y_at = _origin(sample, first, col, channels, pixels, y_last)
    y_in = _within(channels, pixels, block_p, block_c, y_last)
    y_step = channels if y_last else 1
    here = tl.minimum(block_p, end - first)

    inside = (first + rows < end)[:, None] & real[None, :]
    x = tl.load(x_ptr + x_at + x_in, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        other = tl.load(residual_ptr + r_at + r_in, mask=inside, other=0.0)
        total = (x + shift[None, :] + other.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + y_at + y_in, total, mask=inside)
        x = total.to(tl.float32)
    x = tl.where(inside, x, 0.0)
    centre = tl.sum(x, 0) / here
    off = tl.where(inside, x - centre[None, :], 0.0)
    sums = off
    squares = off * off
    for at in tl.range(block_p, end - first, block_p, num_stages=stages):
        inside = (first + at + rows < end)[:, None] & real[None, :]
        block = tl.load(x_ptr + x_at + at * x_step + x_in, mask=inside, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            other = tl.load(residual_ptr + r_at + at * r_step + r_in, mask=inside, other=0.0)
            rounded = (block + shift[None, :] + other.to(tl.float32)).to(total_ptr.dtype.element_ty)
            tl.store(total_ptr + y_at + at * y_step + y_in, rounded, mask=inside)
            block = rounded.to(tl.float32)
        off = tl.where(inside, block - centre[None, :], 0.0)
        sums += off
        squares += off * off
    count = (end - first).to(tl.float32)
    off_mean = tl.sum(sums, 0) / count
    m2 = tl.maximum(tl.sum(squares, 0) - off_mean * off_mean * count, 0.0)
    mean = centre + off_mean
    if residual_ptr is None:
        mean += shift
    to = (sample * tiles + tile) * channels + col + cols
    tl.store(mean_ptr + to, mean, mask=real)
    tl.store(m2_ptr + to, m2, mask=real)


@jit
def _finish(
    mean_ptr, m2_ptr, group_mean_ptr, group_rstd_ptr, sample, col, width, tiles, channels,
    pixels, span, eps, group_size: tl.constexpr, groups_p2: tl.constexpr, size_p2: tl.constexpr,
    finish_c: tl.constexpr,
):
    """Mean and 1 / standard deviation of each group of a panel, from its tiles' numbers."""
    finish_r: tl.constexpr = 2048 // finish_c
    rows = tl.arange(0, finish_r)
    cols = tl.arange(0, finish_c)
    for c in range(0, width, finish_c):
        real = c + cols < width
        base = sample * tiles * channels + col + c + cols
        centre = tl.load(mean_ptr + base, mask=real, other=0.0)
        sums = tl.zeros([finish_r, finish_c], tl.float32)
        squares = tl.zeros([finish_r, finish_c], tl.float32)
        for t in range(0, tiles, finish_r):
            inside = (t + rows < tiles)[:, None] & real[None, :]
            at = base[None, :] + (t + rows)[:, None] * channels
            count = tl.minimum(span, pixels - (t + rows) * span).to(tl.float32)[:, None]
            off = tl.load(mean_ptr + at, mask=inside, other=0.0) - centre[None, :]
            off = tl.where(inside, off, 0.0)
            sums += count * off
            squares += tl.load(m2_ptr + at, mask=inside, other=0.0) + count * off * off
        off_mean = tl.sum(sums, 0) / pixels
        m2 = tl.maximum(tl.sum(squares, 0) - off_mean * off_mean * pixels, 0.0)
        tl.debug_barrier()
        tl.store(mean_ptr + base, centre + off_mean, mask=real)
        tl.store(m2_ptr + base, m2, mask=real)
    tl.debug_barrier()
    group = tl.arange(0, groups_p2)
    member = tl.arange(0, size_p2)
    groups_here = width // group_size
    inside = (group < groups_here)[:, None] & (member < group_size)[None, :]
    at = sample * tiles * channels + col + group[:, None] * group_size + member[None, :]
    means = tl.load(mean_ptr + at, mask=inside, other=0.0)
    m2s = tl.load(m2_ptr + at, mask=inside, other=0.0)
    mean = tl.sum(means, 1) / group_size
    off = tl.where(inside, means - mean[:, None], 0.0)
    variance = tl.sum(m2s / pixels + off * off, 1) / group_size
    rstd = 1.0 / tl.sqrt(variance + eps)
    to = (sample * channels + col) // group_size + group
    tl.store(group_mean_ptr + to, mean, mask=group < groups_here)
    tl.store(group_rstd_ptr + to, rstd, mask=group < groups_here)


@jit
def _apply(
    x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr, group_rstd_ptr, y_ptr, sample, tile,
    col, end_col, channels, pixels, span, shift_stride, silu: tl.constexpr,
    group_size: tl.constexpr, x_last: tl.constexpr, y_last: tl.constexpr, block_p: tl.constexpr,
    block_c: tl.constexpr, stages: tl.constexpr,
):
    """Normalise a tile, and apply SiLU."""
    first = tile * span
    end = tl.minimum(first + span, pixels)
    rows = tl.arange(0, block_p)
    cols = tl.arange(0, block_c)
    real = col + cols < end_col
    shift = _per_channel(shift_ptr, sample * shift_stride + col + cols, real, 0.0)
    group = (sample * channels + col + cols) // group_size
    mean = tl.load(group_mean_ptr + group, mask=real, other=0.0)
    rstd = tl.load(group_rstd_ptr + group, mask=real, other=0.0)
    scale = rstd * _per_channel(weight_ptr, col + cols, real, 1.0)
    bias = _per_channel(bias_ptr, col + cols, real, 0.0)
    mean -= shift
    x_at = _origin(sample, first, col, channels, pixels, x_last)
    x_in = _within(channels, pixels, block_p, block_c, x_last)
    x_step = channels if x_last else 1
    y_at = _origin(sample, first, col, channels, pixels, y_last)
    y_in = _within(channels, pixels, block_p, block_c, y_last)
    y_step = channels if y_last else 1
    for at in tl.range(0, end - first, block_p, num_stages=stages):
        inside = (first + at + rows < end)[:, None] & real[None, :]
        x = tl.load(
            x_ptr + x_at + at * x_step + x_in,
            mask=inside,
            other=0.0,
            eviction_policy="evict_first",
        ).to(tl.float32)
        z = (x - mean[None, :]) * scale[None, :] + bias[None, :]
        if silu:
            z *= sigmoid(z)
        tl.store(
            y_ptr + y_at + at * y_step + y_in, z.to(y_ptr.dtype.element_ty),
            mask=inside,
            eviction_policy="evict_first",
        )


@jit
def group_norm_window_kernel(
    x_ptr, shift_ptr, residual_ptr, total_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, m2_ptr,
    group_mean_ptr, group_rstd_ptr, ticket_ptr, channels, pixels, span, tiles, width,
    column_tiles, samples, lag, shift_stride, eps, silu: tl.constexpr, group_size: tl.constexpr,
    groups_p2: tl.constexpr, size_p2: tl.constexpr, finish_c: tl.constexpr,
    x_last: tl.constexpr, residual_last: tl.constexpr, y_last: tl.constexpr,
    block_p: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
):
    panels_each = (channels + width - 1) // width
    panels = samples * panels_each
    each = tiles * column_tiles
    ticket = tl.atomic_add(ticket_ptr, 1)
    if ticket < panels * each:
        panel = ticket // each
        sample = panel // panels_each
        col = (panel % panels_each) * width
        end_col = tl.minimum(col + width, channels)
        tile = (ticket % each) // column_tiles
        _measure(
            x_ptr, shift_ptr, residual_ptr, total_ptr, mean_ptr, m2_ptr, sample, tile,
            col + (ticket % column_tiles) * block_c, end_col, tiles, channels, pixels,
            span, shift_stride, x_last, residual_last, y_last, block_p, block_c, stages,
        )
        tl.debug_barrier()
        if tl.atomic_add(ticket_ptr + 1 + panel, 1, sem="acq_rel") == each - 1:
            _finish(
                mean_ptr, m2_ptr, group_mean_ptr, group_rstd_ptr, sample, col,
                end_col - col, tiles, channels, pixels, span, eps, group_size,
                groups_p2, size_p2, finish_c,
            )
            tl.debug_barrier()
            tl.atomic_xchg(ticket_ptr + 1 + panels + panel, 1, sem="release")
    late = ticket - lag
    if late >= 0:
        panel = late // each
        sample = panel // panels_each
        col = (panel % panels_each) * width
        while tl.atomic_add(ticket_ptr + 1 + panels + panel, 0, sem="acquire") == 0:
            pass
        if residual_ptr is None:
            _apply(
                x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr,
                group_rstd_ptr, y_ptr, sample, (late % each) // column_tiles, col +
                (late % column_tiles) * block_c,
                tl.minimum(col + width, channels),
                channels, pixels, span, shift_stride, silu, group_size, x_last,
                y_last, block_p, block_c, stages,
            )
        else:
            _apply(
                total_ptr, None, weight_ptr, bias_ptr, group_mean_ptr,
                group_rstd_ptr, y_ptr, sample, (late % each) // column_tiles, col +
                (late % column_tiles) * block_c,
                tl.minimum(col + width, channels),
                channels, pixels, span, shift_stride, silu, group_size, y_last,
                y_last, block_p, block_c, stages,
            )


@jit
def group_norm_panel_kernel(
    x_ptr, shift_ptr, residual_ptr, total_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, m2_ptr,
    group_mean_ptr, group_rstd_ptr, channels, pixels, width, shift_stride, eps,
    silu: tl.constexpr, group_size: tl.constexpr, groups_p2: tl.constexpr,
    size_p2: tl.constexpr, finish_c: tl.constexpr, x_last: tl.constexpr,
    residual_last: tl.constexpr, y_last: tl.constexpr, block_p: tl.constexpr,
    block_c: tl.constexpr, stages: tl.constexpr,
):
    panels_each = (channels + width - 1) // width
    sample = tl.program_id(0) // panels_each
    col = (tl.program_id(0) % panels_each) * width
    end_col = tl.minimum(col + width, channels)
    for c in range(col, end_col, block_c):
        _measure(
            x_ptr, shift_ptr, residual_ptr, total_ptr, mean_ptr, m2_ptr, sample, 0, c,
            end_col, 1, channels, pixels, pixels, shift_stride, x_last, residual_last,
            y_last, block_p, block_c, stages,
        )
    tl.debug_barrier()
    _finish(
        mean_ptr, m2_ptr, group_mean_ptr, group_rstd_ptr, sample, col, end_col - col, 1,
        channels, pixels, pixels, eps, group_size, groups_p2, size_p2, finish_c,
    )
    tl.debug_barrier()
    for c in range(col, end_col, block_c):
        if residual_ptr is None:
            _apply(
                x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr,
                group_rstd_ptr, y_ptr, sample, 0, c, end_col, channels, pixels,
                pixels, shift_stride, silu, group_size, x_last, y_last, block_p,
                block_c, stages,
            )
        else:
            _apply(
                total_ptr, None, weight_ptr, bias_ptr, group_mean_ptr,
                group_rstd_ptr, y_ptr, sample, 0, c, end_col, channels, pixels,
                pixels, shift_stride, silu, group_size, y_last, y_last, block_p,
                block_c, stages,
            )


# 3. Backward


@jit
def _slope(dy, z, silu: tl.constexpr):
    """Gradient by the argument of SiLU."""
    if silu:
        s = sigmoid(z)
        return dy * (s + z * s * (1.0 - s))
    else:  # noqa: RET505
        return dy


@jit
def _measure_backward(
    dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr, group_rstd_ptr, dot_ptr,
    sum_ptr, sample, tile, col, end_col, tiles, channels, pixels, span, shift_stride,
    silu: tl.constexpr, group_size: tl.constexpr, dy_last: tl.constexpr, x_last: tl.constexpr,
    block_p: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
):
    """Sums of g and of g * normalised x, of each channel of a tile, where g is SiLU's gradient."""
    first = tile * span
    end = tl.minimum(first + span, pixels)
    rows = tl.arange(0, block_p)
    cols = tl.arange(0, block_c)
    real = col + cols < end_col
    shift = _per_channel(shift_ptr, sample * shift_stride + col + cols, real, 0.0)
    weight = _per_channel(weight_ptr, col + cols, real, 1.0)
    bias = _per_channel(bias_ptr, col + cols, real, 0.0)
    group = (sample * channels + col + cols) // group_size
    mean = tl.load(group_mean_ptr + group, mask=real, other=0.0) - shift
    rstd = tl.load(group_rstd_ptr + group, mask=real, other=0.0)
    x_at = _origin(sample, first, col, channels, pixels, x_last)
    x_in = _within(channels, pixels, block_p, block_c, x_last)
    x_step = channels if x_last else 1
    d_at = _origin(sample, first, col, channels, pixels, dy_last)
    d_in = _within(channels, pixels, block_p, block_c, dy_last)
    d_step = channels if dy_last else 1
    dots = tl.zeros([block_p, block_c], tl.float32)
    sums = tl.zeros([block_p, block_c], tl.float32)
    for at in tl.range(0, end - first, block_p, num_stages=stages):
        inside = (first + at + rows < end)[:, None] & real[None, :]
        x = tl.load(x_ptr + x_at + at * x_step + x_in, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + d_at + at * d_step + d_in, mask=inside, other=0.0).to(tl.float32)
        normal = (x - mean[None, :]) * rstd[None, :]
        g = _slope(dy, normal * weight[None, :] + bias[None, :], silu)
        g = tl.where(inside, g, 0.0)
        sums += g
        dots += g * normal
    to = (sample * tiles + tile) * channels + col + cols
    tl.store(dot_ptr + to, tl.sum(dots, 0), mask=real)
    tl.store(sum_ptr + to, tl.sum(sums, 0), mask=real)


@jit
def _finish_backward(
    dot_ptr, sum_ptr, weight_ptr, dweight_ptr, dbias_ptr, group_dot_ptr, group_sum_ptr, sample,
    col, width, tiles, channels, pixels, group_size: tl.constexpr, groups_p2: tl.constexpr,
    size_p2: tl.constexpr, finish_c: tl.constexpr,
):
    """Sums of each channel of a panel, and the weighted means of each group, from its tiles'."""
    finish_r: tl.constexpr = 2048 // finish_c
    rows = tl.arange(0, finish_r)
    cols = tl.arange(0, finish_c)
    for c in range(0, width, finish_c):
        real = c + cols < width
        base = sample * tiles * channels + col + c + cols
        dots = tl.zeros([finish_r, finish_c], tl.float32)
        sums = tl.zeros([finish_r, finish_c], tl.float32)
        for t in range(0, tiles, finish_r):
            inside = (t + rows < tiles)[:, None] & real[None, :]
            at = base[None, :] + (t + rows)[:, None] * channels
            dots += tl.load(dot_ptr + at, mask=inside, other=0.0)
            sums += tl.load(sum_ptr + at, mask=inside, other=0.0)
        to = sample * channels + col + c + cols
        tl.store(dweight_ptr + to, tl.sum(dots, 0), mask=real)
        tl.store(dbias_ptr + to, tl.sum(sums, 0), mask=real)
    tl.debug_barrier()
    group = tl.arange(0, groups_p2)
    member = tl.arange(0, size_p2)
    groups_here = width // group_size
    inside = (group < groups_here)[:, None] & (member < group_size)[None, :]
    at = col + group[:, None] * group_size + member[None, :]
    weight = _per_channel(weight_ptr, at, inside, 1.0)
    dot = tl.load(dweight_ptr + sample * channels + at, mask=inside, other=0.0)
    total = tl.load(dbias_ptr + sample * channels + at, mask=inside, other=0.0)
    count = pixels * group_size
    to = (sample * channels + col) // group_size + group
    tl.store(group_dot_ptr + to, tl.sum(weight * dot, 1) / count, mask=group < groups_here)
    tl.store(group_sum_ptr + to, tl.sum(weight * total, 1) / count, mask=group < groups_here)


@jit
def _apply_backward(
    dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, extra_ptr, dx_ptr, group_mean_ptr,
    group_rstd_ptr, group_dot_ptr, group_sum_ptr, sample, tile, col, end_col, channels, pixels,
    span, shift_stride, silu: tl.constexpr, group_size: tl.constexpr, dy_last: tl.constexpr,
    x_last: tl.constexpr, extra_last: tl.constexpr, block_p: tl.constexpr,
    block_c: tl.constexpr, stages: tl.constexpr,
):
    """Write the gradient of a tile, in the layout of ``x``, plus what else arrives there."""
    first = tile * span
    end = tl.minimum(first + span, pixels)
    rows = tl.arange(0, block_p)
    cols = tl.arange(0, block_c)
    real = col + cols < end_col
    shift = _per_channel(shift_ptr, sample * shift_stride + col + cols, real, 0.0)
    weight = _per_channel(weight_ptr, col + cols, real, 1.0)
    bias = _per_channel(bias_ptr, col + cols, real, 0.0)
    group = (sample * channels + col + cols) // group_size
    mean = tl.load(group_mean_ptr + group, mask=real, other=0.0) - shift
    rstd = tl.load(group_rstd_ptr + group, mask=real, other=0.0)
    dot = tl.load(group_dot_ptr + group, mask=real, other=0.0)
    total = tl.load(group_sum_ptr + group, mask=real, other=0.0)
    x_at = _origin(sample, first, col, channels, pixels, x_last)
    x_in = _within(channels, pixels, block_p, block_c, x_last)
    x_step = channels if x_last else 1
    d_at = _origin(sample, first, col, channels, pixels, dy_last)
    d_in = _within(channels, pixels, block_p, block_c, dy_last)
    d_step = channels if dy_last else 1
    e_at = _origin(sample, first, col, channels, pixels, extra_last)
    e_in = _within(channels, pixels, block_p, block_c, extra_last)
    e_step = channels if extra_last else 1
    for at in tl.range(0, end - first, block_p, num_stages=stages):
        inside = (first + at + rows < end)[:, None] & real[None, :]
        x = tl.load(
            x_ptr + x_at + at * x_step + x_in,
            mask=inside,
            other=0.0,
            eviction_policy="evict_first",
        ).to(tl.float32)
        dy = tl.load(
            dy_ptr + d_at + at * d_step + d_in,
            mask=inside,
            other=0.0,
            eviction_policy="evict_first",
        ).to(tl.float32)
        normal = (x - mean[None, :]) * rstd[None, :]
        g = _slope(dy, normal * weight[None, :] + bias[None, :], silu)
        dx = (weight[None, :] * g - total[None, :] - normal * dot[None, :]) * rstd[None, :]
        if extra_ptr is not None:
            dx += tl.load(extra_ptr + e_at + at * e_step + e_in, mask=inside, other=0.0).to(
                tl.float32
            )
        tl.store(
            dx_ptr + x_at + at * x_step + x_in, dx.to(dx_ptr.dtype.element_ty),
            mask=inside,
            eviction_policy="evict_first",
        )


@jit
def group_norm_backward_window_kernel(
    dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, extra_ptr, dx_ptr, group_mean_ptr,
    group_rstd_ptr, dot_ptr, sum_ptr, dweight_ptr, dbias_ptr, group_dot_ptr, group_sum_ptr,
    ticket_ptr, channels, pixels, span, tiles, width, column_tiles, samples, lag, shift_stride,
    silu: tl.constexpr, group_size: tl.constexpr, groups_p2: tl.constexpr,
    size_p2: tl.constexpr, finish_c: tl.constexpr, dy_last: tl.constexpr, x_last: tl.constexpr,
    extra_last: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
    stages: tl.constexpr,
):
    panels_each = (channels + width - 1) // width
    panels = samples * panels_each
    each = tiles * column_tiles
    ticket = tl.atomic_add(ticket_ptr, 1)
    if ticket < panels * each:
        panel = ticket // each
        sample = panel // panels_each
        col = (panel % panels_each) * width
        end_col = tl.minimum(col + width, channels)
        _measure_backward(
            dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr,
            group_rstd_ptr, dot_ptr, sum_ptr, sample, (ticket % each) // column_tiles,
            col + (ticket % column_tiles) * block_c, end_col, tiles, channels, pixels,
            span, shift_stride, silu, group_size, dy_last, x_last, block_p, block_c,
            stages,
        )
        tl.debug_barrier()
        if tl.atomic_add(ticket_ptr + 1 + panel, 1, sem="acq_rel") == each - 1:
            _finish_backward(
                dot_ptr, sum_ptr, weight_ptr, dweight_ptr, dbias_ptr, group_dot_ptr,
                group_sum_ptr, sample, col, end_col - col, tiles, channels, pixels,
                group_size, groups_p2, size_p2, finish_c,
            )
            tl.debug_barrier()
            tl.atomic_xchg(ticket_ptr + 1 + panels + panel, 1, sem="release")
    late = ticket - lag
    if late >= 0:
        panel = late // each
        sample = panel // panels_each
        col = (panel % panels_each) * width
        while tl.atomic_add(ticket_ptr + 1 + panels + panel, 0, sem="acquire") == 0:
            pass
        _apply_backward(
            dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, extra_ptr, dx_ptr,
            group_mean_ptr, group_rstd_ptr, group_dot_ptr, group_sum_ptr, sample, (late
            % each) // column_tiles, col + (late % column_tiles) * block_c,
            tl.minimum(col + width, channels),
            channels, pixels, span, shift_stride, silu, group_size, dy_last, x_last,
            extra_last, block_p, block_c, stages,
        )


@jit
def group_norm_backward_panel_kernel(
    dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, extra_ptr, dx_ptr, group_mean_ptr,
    group_rstd_ptr, dot_ptr, sum_ptr, dweight_ptr, dbias_ptr, group_dot_ptr, group_sum_ptr,
    channels, pixels, width, shift_stride, silu: tl.constexpr, group_size: tl.constexpr,
    groups_p2: tl.constexpr, size_p2: tl.constexpr, finish_c: tl.constexpr,
    dy_last: tl.constexpr, x_last: tl.constexpr, extra_last: tl.constexpr,
    block_p: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
):
    panels_each = (channels + width - 1) // width
    sample = tl.program_id(0) // panels_each
    col = (tl.program_id(0) % panels_each) * width
    end_col = tl.minimum(col + width, channels)
    for c in range(col, end_col, block_c):
        _measure_backward(
            dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, group_mean_ptr,
            group_rstd_ptr, dot_ptr, sum_ptr, sample, 0, c, end_col, 1, channels,
            pixels, pixels, shift_stride, silu, group_size, dy_last, x_last, block_p,
            block_c, stages,
        )
    tl.debug_barrier()
    _finish_backward(
        dot_ptr, sum_ptr, weight_ptr, dweight_ptr, dbias_ptr, group_dot_ptr, group_sum_ptr,
        sample, col, end_col - col, 1, channels, pixels, group_size, groups_p2, size_p2,
        finish_c,
    )
    tl.debug_barrier()
    for c in range(col, end_col, block_c):
        _apply_backward(
            dy_ptr, x_ptr, shift_ptr, weight_ptr, bias_ptr, extra_ptr, dx_ptr,
            group_mean_ptr, group_rstd_ptr, group_dot_ptr, group_sum_ptr, sample, 0, c,
            end_col, channels, pixels, pixels, shift_stride, silu, group_size, dy_last,
            x_last, extra_last, block_p, block_c, stages,
        )
