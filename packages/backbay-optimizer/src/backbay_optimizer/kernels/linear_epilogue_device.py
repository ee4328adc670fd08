"""Device code of :mod:`backbay_optimizer.kernels.linear_epilogue`; it imports Triton.

A program computes ``block_m`` rows of ``block_n`` columns. Programs that are next to each other
have the same rows: these are read from memory once, and from the L2 cache for the other columns.
Where ``sweep`` is set and a row fits into one block, a program does all columns of its rows.

What the products here take is the time to read and write; what is issued for each element that is
written must hide behind that. So GELU is not by ``erf``, of about 25 instructions, but by
``Phi(-t) = 2 ** q(t)`` with a polynomial, of about 12, where 16 bits are written: relative to the
result it is off by 1.3e-5 at most, and rounding to 16 bits by 2.4e-4.
"""

# A kernel takes many arguments, which are read best side by side.
# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _gelu(x):
    """``x * Phi(x)``, by a polynomial for the logarithm of Phi, fitted between -7 and 0.

    Beyond, it falls faster than Phi.
    """
    t = tl.abs(x)
    q = -1.588218196957314e-06 * t + 5.615339978248812e-05
    q = q * t - 0.0008832158055156469
    q = q * t + 0.008303220383822918
    q = q * t - 0.053501322865486145
    q = q * t - 0.4589643180370331
    q = q * t - 1.1510356664657593
    p = tl.exp2(q * t - 1.0000139474868774)
    return x * tl.where(x > 0, 1 - p, p)


@jit
def _activated(x, activation: tl.constexpr, is_exact: tl.constexpr):
    if activation == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476)) if is_exact else _gelu(x)
    elif activation == "silu":
        x = x / (1 + tl.exp2(x * -1.4426950408889634))
    elif activation == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif activation == "hardswish":
        x = x * (tl.clamp(x + 3, 0.0, 6.0, propagate_nan=tl.PropagateNan.ALL) / 6)
    return x


@jit
def _vector(ptr, col, real):
    return tl.load(ptr + col, mask=real, other=0.0).to(tl.float32)


@jit
def _rstd(var, eps):
    # Inductor hands over a Python float as float64, and all that follows would be computed in it.
    return tl.rsqrt(var.to(tl.float32) + tl.cast(eps, tl.float32))


@jit
def _finish(
    total, bias_ptr, mean_ptr, var_ptr, scale_ptr, shift_ptr, residual_ptr, y_ptr, row, col,
    rows, eps, columns: tl.constexpr, activation: tl.constexpr,
):
    """Apply what follows the product to a block of it, and write it."""
    real = col < columns
    if bias_ptr is not None:
        total += _vector(bias_ptr, col, real)[None, :]
    if mean_ptr is not None:
        var = tl.load(var_ptr + col, mask=real, other=1.0)
        total = (total - _vector(mean_ptr, col, real)[None, :]) * _rstd(var, eps)[None, :]
    if scale_ptr is not None:
        total *= _vector(scale_ptr, col, real)[None, :]
    if shift_ptr is not None:
        total += _vector(shift_ptr, col, real)[None, :]
    total = _activated(total, activation, y_ptr.dtype.element_ty == tl.float32)
    at = row[:, None] * columns + col[None, :]
    inside = (row < rows)[:, None] & real[None, :]
    if residual_ptr is not None:
        total += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


@jit
def _factors(gate_ptr, row, k, inside, rows, each, inner: tl.constexpr, few: tl.constexpr):
    """The gates of rows. Those of two images at most, which ``few`` says, are read as vectors."""
    if few:
        image = tl.min(row, 0) // each
        real = k < inner
        one = tl.load(gate_ptr + image * inner + k, mask=real, other=0.0)
        more = real & ((image + 1) * each < rows)
        other = tl.load(gate_ptr + (image + 1) * inner + k, mask=more, other=0.0)
        gate = tl.where((row < (image + 1) * each)[:, None], one[None, :], other[None, :])
    else:
        at = (row // each)[:, None] * inner + k[None, :]
        gate = tl.load(gate_ptr + at, mask=inside, other=0.0)
    return gate.to(tl.float32)


@jit
def _rows(
    x_ptr, entry_mean_ptr, entry_var_ptr, entry_scale_ptr, entry_shift_ptr, gate_ptr, row, k, rows,
    each, entry_eps, inner: tl.constexpr, entry_activation: tl.constexpr, few: tl.constexpr,
    block_k: tl.constexpr,
):
    """Load a block of rows: normalised, activated, and scaled by the gate of ``each`` of them."""
    inside = (row < rows)[:, None]
    if inner % block_k != 0:
        inside = inside & (k < inner)[None, :]
    loaded = tl.load(x_ptr + row[:, None] * inner + k[None, :], mask=inside, other=0.0)
    x = loaded
    if entry_mean_ptr is not None:
        real = k < inner
        var = tl.load(entry_var_ptr + k, mask=real, other=1.0)
        factor = _rstd(var, entry_eps) * _vector(entry_scale_ptr, k, real)
        x = (x.to(tl.float32) - _vector(entry_mean_ptr, k, real)[None, :]) * factor[None, :]
        x += _vector(entry_shift_ptr, k, real)[None, :]
    if entry_activation != "none":
        x = _activated(x.to(tl.float32), entry_activation, loaded.dtype == tl.float32)
    if gate_ptr is not None:
        x = x.to(tl.float32) * _factors(gate_ptr, row, k, inside, rows, each, inner, few)
    return x.to(loaded.dtype)


@jit
def _weights(weight_ptr, col, k, inner: tl.constexpr, columns: tl.constexpr, block_k: tl.constexpr):
    inside = (col < columns)[None, :]
    if inner % block_k != 0:
        inside = inside & (k < inner)[:, None]
    return tl.load(weight_ptr + col[None, :] * inner + k[:, None], mask=inside, other=0.0)


@jit
def _product(x, weight, total, is_cpu: tl.constexpr):
    if is_cpu:  # Triton's interpreter knows no product of bfloat16
        x, weight = x.to(tl.float32), weight.to(tl.float32)
    return tl.dot(x, weight, total, input_precision="ieee")


@jit
def linear_kernel(
    x_ptr, weight_ptr, bias_ptr, mean_ptr, var_ptr, scale_ptr, shift_ptr, residual_ptr, gate_ptr,
    entry_mean_ptr, entry_var_ptr, entry_scale_ptr, entry_shift_ptr, y_ptr, rows, each, eps,
    entry_eps, inner: tl.constexpr, columns: tl.constexpr, activation: tl.constexpr,
    entry_activation: tl.constexpr, few: tl.constexpr, is_cpu: tl.constexpr, sweep: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):
    """``x`` (rows, inner) by ``weight`` (columns, inner), with what is before and after."""
    tiles: tl.constexpr = 1 if sweep else (columns + block_n - 1) // block_n
    row = (tl.program_id(0) // tiles).to(tl.int64) * block_m + tl.arange(0, block_m)
    first = (tl.program_id(0) % tiles) * block_n
    k = tl.arange(0, block_k)
    if sweep:
        x = _rows(
            x_ptr, entry_mean_ptr, entry_var_ptr, entry_scale_ptr, entry_shift_ptr, gate_ptr, row,
            k, rows, each, entry_eps, inner, entry_activation, few, block_k,
        )
        for at in range(0, columns, block_n):
            col = at + tl.arange(0, block_n)
            weight = _weights(weight_ptr, col, k, inner, columns, block_k)
            total = _product(x, weight, tl.zeros([block_m, block_n], tl.float32), is_cpu)
            _finish(
                total, bias_ptr, mean_ptr, var_ptr, scale_ptr, shift_ptr, residual_ptr, y_ptr, row,
                col, rows, eps, columns, activation,
            )
    else:
        col = first + tl.arange(0, block_n)
        total = tl.zeros([block_m, block_n], tl.float32)
        for at in range(0, inner, block_k):
            x = _rows(
                x_ptr, entry_mean_ptr, entry_var_ptr, entry_scale_ptr, entry_shift_ptr, gate_ptr,
                row, at + k, rows, each, entry_eps, inner, entry_activation, few, block_k,
            )
            weight = _weights(weight_ptr, col, at + k, inner, columns, block_k)
            total = _product(x, weight, total, is_cpu)
        _finish(
            total, bias_ptr, mean_ptr, var_ptr, scale_ptr, shift_ptr, residual_ptr, y_ptr, row, col,
            rows, eps, columns, activation,
        )
