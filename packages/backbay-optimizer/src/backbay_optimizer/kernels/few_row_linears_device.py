"""Device code of :mod:`backbay_optimizer.kernels.few_row_linears`; it imports Triton.

A program computes ``block_m`` rows of ``block_n`` columns of one layer, or of a gate and what it
gates. The product is computed transposed, with columns of weights first: tensor cores want 64 of
what is first, and 16 rows are enough of what is second. Sizes are arguments, not constants, so
that layers of all sizes share a compiled kernel.
"""

# A kernel takes many arguments, which are read best side by side.
# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def _rows(x_ptr, row, k, rows, inner, even_k: tl.constexpr):
    """Load a block of rows, transposed."""
    inside = (row < rows)[None, :]
    if not even_k:
        inside = inside & (k < inner)[:, None]
    return tl.load(x_ptr + row[None, :] * inner + k[:, None], mask=inside, other=0.0)


@jit
def _weights(weight_ptr, col, k, columns, inner, even_n: tl.constexpr, even_k: tl.constexpr):
    at = weight_ptr + col[:, None] * inner + k[None, :]
    if even_n and even_k:
        return tl.load(at)
    return tl.load(at, mask=(col < columns)[:, None] & (k < inner)[None, :], other=0.0)


@jit
def _product(weight, x, total, is_cpu: tl.constexpr):
    if is_cpu:  # Triton's interpreter knows no product of bfloat16
        weight, x = weight.to(tl.float32), x.to(tl.float32)
    return tl.dot(weight, x, total, input_precision="ieee")


@jit
def _biased(total, bias_ptr, col, columns):
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + col, mask=col < columns, other=0.0)
        total += bias.to(tl.float32)[:, None]
    return total


@jit
def _write(total, y_ptr, row, col, rows, columns):
    inside = (col < columns)[:, None] & (row < rows)[None, :]
    at = y_ptr + row[None, :] * columns + col[:, None]
    tl.store(at, total.to(y_ptr.dtype.element_ty), mask=inside)


@jit
def _finish(total, is_own, bias_ptr, y_ptr, row, col, rows, columns):
    """Write what a layer gives, if the program is that layer's."""
    if y_ptr is not None:  # noqa: SIM102 (this one is decided when it is compiled)
        if is_own:
            _write(_biased(total, bias_ptr, col, columns), y_ptr, row, col, rows, columns)


@jit
def _activated(x, activation: tl.constexpr):
    if activation == "silu":
        x = x / (1 + tl.exp2(x * -1.4426950408889634))
    else:  # "gelu_tanh": 1 + tanh(u) is 2 / (1 + exp(-2 u))
        u = x * (1 + 0.044715 * x * x)
        x = x / (1 + tl.exp2(u * -2.302208198144325))
    return x


@jit
def linears_kernel(
    x_ptr, a_ptr, b_ptr, c_ptr, a_bias_ptr, b_bias_ptr, c_bias_ptr, a_y_ptr, b_y_ptr, c_y_ptr, rows,
    inner, a_columns, b_columns, c_columns, is_cpu: tl.constexpr, even_n: tl.constexpr,
    even_k: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):
    """``x`` (rows, inner) by each of up to three weights (columns, inner), with their biases."""
    tile = tl.program_id(0)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    layer = 0
    weight_ptr, columns = a_ptr, a_columns
    if b_ptr is not None:
        tiles = tl.cdiv(a_columns, block_n)
        if tile >= tiles:
            layer, tile, weight_ptr, columns = 1, tile - tiles, b_ptr, b_columns
    if c_ptr is not None:
        tiles = tl.cdiv(b_columns, block_n)
        if (layer == 1) & (tile >= tiles):
            layer, tile, weight_ptr, columns = 2, tile - tiles, c_ptr, c_columns
    col = tile * block_n + tl.arange(0, block_n)
    k = tl.arange(0, block_k)
    total = tl.zeros([block_n, block_m], tl.float32)
    for at in range(0, inner, block_k):
        weight = _weights(weight_ptr, col, at + k, columns, inner, even_n, even_k)
        x = _rows(x_ptr, row, at + k, rows, inner, even_k)
        total = _product(weight, x, total, is_cpu)
    _finish(total, layer == 0, a_bias_ptr, a_y_ptr, row, col, rows, columns)
    _finish(total, layer == 1, b_bias_ptr, b_y_ptr, row, col, rows, columns)
    _finish(total, layer > 1, c_bias_ptr, c_y_ptr, row, col, rows, columns)


@jit
def gated_kernel(
    x_ptr, gate_ptr, up_ptr, gate_bias_ptr, up_bias_ptr, y_ptr, rows, inner, columns,
    activation: tl.constexpr, is_cpu: tl.constexpr, even_n: tl.constexpr, even_k: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):
    """``activation(x @ gate.T) * (x @ up.T)``, with their biases."""
    col = tl.program_id(0) * block_n + tl.arange(0, block_n)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    k = tl.arange(0, block_k)
    gate = tl.zeros([block_n, block_m], tl.float32)
    up = tl.zeros([block_n, block_m], tl.float32)
    for at in range(0, inner, block_k):
        one = _weights(gate_ptr, col, at + k, columns, inner, even_n, even_k)
        other = _weights(up_ptr, col, at + k, columns, inner, even_n, even_k)
        x = _rows(x_ptr, row, at + k, rows, inner, even_k)
        gate = _product(one, x, gate, is_cpu)
        up = _product(other, x, up, is_cpu)
    gate = _activated(_biased(gate, gate_bias_ptr, col, columns), activation)
    _write(gate * _biased(up, up_bias_ptr, col, columns), y_ptr, row, col, rows, columns)
