"""Linear layers of few rows that read the same, in one kernel, in Triton.

Queries, keys and values; or a gate and what it gates, with the gate's activation and the product
(SwiGLU: Shazeer, 2020, arXiv 2002.05202). Weights are read where they are, each once, by programs
that each have columns of one layer: no copy lays them side by side.

What must move: the weights, once, and little else. Operations: 2 for each weight and row, so with M
rows M for each byte in 16 bits. An H100, with 3 TB/s and about 600 TFLOP/s, waits for memory up to
some 200 rows. With fewer a product is no faster than weights are read, and a launch for each layer
leaves memory idle at its beginning and its end.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

EIGHTS = 8
"""Elements of 16 bits that are read at once."""

LAYERS = 3
"""As many are computed at once."""

MOST_ROWS = {3 * 2**21: 512, 35 * 2**20: 256, 5 * 2**24: 16}
"""Rows up to which it pays, by how many elements all weights have at most, of layers without a
gate (``benchmarks/conditions.py``, as all of these)."""

MOST_ROWS_GATED = {2**25: 256, 7 * 2**24: 128, 7 * 2**26: 64}
"""Likewise of a gate and what it gates."""

MOST_ROWS_ODD = (64, 16)
"""Likewise for sizes that are not in `BLOCK`: without a gate, and with one."""

MOST_ROWS_TALL = 64
"""Likewise for weights of few columns, which leave multiprocessors idle: fewer than they read, or
twice that of a gate. A gate of 4096 columns that reads as many took 1.14 times as long with 128
rows, and 0.91 with 256; others were not measured."""

FEWEST = 2**19
"""Elements of all weights from which it was measured."""

BLOCK = (64, 128)
"""Columns, and elements of each, that a program reads at once with most plans."""

Activation = Literal["silu", "gelu_tanh"]
"""Of a gate."""


# 1. The reference

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


def reference(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return ``x @ weight.T + bias`` for each weight, rounded once.

    Args:
        x: (..., K), of a floating-point dtype; those of 16 bits are computed in float32.
        weights: (N, K) each, of the same dtype; their N may differ.
        biases: (N,) or None, one for each weight.

    Returns:
        (..., N) each, contiguous, in the dtype of ``x``.
    """
    made = [_linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    return [y.to(x.dtype).contiguous() for y in made]


def gated_reference(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    activation: str = "silu",
) -> Tensor:
    """Return ``activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias)``, rounded once.

    Args:
        x: (..., K), of a floating-point dtype; those of 16 bits are computed in float32.
        gate: (N, K), of the same dtype.
        up: likewise.
        gate_bias: (N,) or None.
        up_bias: likewise.
        activation: one of `Activation`.

    Returns:
        (..., N), contiguous, in the dtype of ``x``.
    """
    y = _ACTIVATIONS[activation](_linear(x, gate, gate_bias)) * _linear(x, up, up_bias)
    return y.to(x.dtype).contiguous()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(widened(x), widened(weight), None if bias is None else widened(bias))


# 2. How a product is cut


class Plan(NamedTuple):
    """How large a program's piece is."""

    block_m: int
    """Rows."""
    block_n: int
    """Columns."""
    block_k: int
    """Of what is multiplied, at once."""
    warps: int = 4
    stages: int = 4


LIMITS = {
    "block_m": (16, 128),
    "block_n": (32, 256),
    "block_k": (32, 256),
    "warps": (2, 8),
    "stages": (1, 6),
}
"""Of plans, where another GPU's is searched."""


def plan(rows: int, inner: int, elements: int, *, is_gated: bool = False) -> Plan:
    """Return how to cut a product: by searches on an H100 and, later, an H200, in bfloat16.

    Args:
        rows: M.
        inner: K.
        elements: of all weights.
        is_gated: whether a program computes a gate and what it gates.
    """
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64  # noqa: PLR2004 (ranges are guarded, not numbers)
    columns = elements // max(inner, 1)
    if is_gated and rows <= 64:  # noqa: PLR2004 (by search, as all of these)
        return Plan(block_m, 64, 128, 4, 4)
    if is_gated:
        return Plan(128, 64, 128 if _tiles(rows, columns // 2, 64) <= _AT_ONCE else 64, 8, 3)
    if rows > 128:  # noqa: PLR2004
        return _many_rows_plan(rows, inner, columns)
    if rows <= 32:  # noqa: PLR2004
        return Plan(block_m, 64, 128, 4, 6)
    if elements <= 2**23:
        return Plan(32, 64, 128, 4, 4)
    return Plan(64, 64, 128, 4, 4) if rows <= 64 else Plan(128, 64, 128, 8, 4)  # noqa: PLR2004


def _many_rows_plan(rows: int, inner: int, columns: int) -> Plan:
    if inner <= 1024:  # noqa: PLR2004
        return Plan(128, 64, 64, 8, 4)
    # The narrowest whose tiles all run at once.
    if _tiles(rows, columns, 64) <= _AT_ONCE:
        return Plan(128, 64, 128, 8, 4)
    return Plan(128, 128 if _tiles(rows, columns, 128) <= _AT_ONCE else 256, 64, 8, 4)


_AT_ONCE = 132
"""Programs that run at once, of those that take most of a multiprocessor's shared memory."""


def _tiles(rows: int, columns: int, block_n: int) -> int:
    return -(-rows // 128) * -(-columns // block_n)


# 3. Launching


def launch(
    kernel: Any,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    chosen: Plan | None = None,
) -> list[Tensor]:
    """Run the kernel, without a dispatcher or a check; the same as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how to cut, by default `plan`.
    """
    inner, sizes = x.shape[-1], [int(w.shape[0]) for w in weights]
    rows = math.prod(x.shape[:-1])
    given = (x, weights, biases)
    this = Launch(run=launch, kernels=[kernel], given=given, reference=reference, limits=LIMITS)
    how = chosen or plan_here(plan(rows, inner, inner * sum(sizes)), this)
    made = [x.new_empty(rows, n) for n in sizes]
    if rows:
        none = [None] * (LAYERS - len(sizes))
        tiles = sum(-(-n // how.block_n) for n in sizes)
        grid = (tiles, -(-rows // how.block_m))
        with torch.cuda.device(x.get_device()):  # Triton launches on the current one; -1 is none
            kernel[grid](
                x.contiguous().view(rows, inner),
                *(w.contiguous() for w in weights),
                *none,
                *(_dense(bias) for bias in biases),
                *none,
                *made,
                *none,
                rows,
                inner,
                *sizes,
                *([0] * len(none)),
                **_constants(how, inner, sizes, x),
            )
    return [y.view(*x.shape[:-1], n) for y, n in zip(made, sizes, strict=True)]


def launch_gated(
    kernel: Any,
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    activation: str = "silu",
    chosen: Plan | None = None,
) -> Tensor:
    """Run the kernel, as `launch` does; the same as `gated_reference`."""
    columns, inner = int(gate.shape[0]), int(gate.shape[1])
    rows = math.prod(x.shape[:-1])
    this = Launch(
        run=launch_gated,
        kernels=[kernel],
        given=(x, gate, up, gate_bias, up_bias, activation),
        reference=gated_reference,
        limits=LIMITS,
    )
    how = chosen or plan_here(plan(rows, inner, 2 * inner * columns, is_gated=True), this)
    y = x.new_empty(rows, columns)
    if y.numel():
        grid = (-(-columns // how.block_n), -(-rows // how.block_m))
        with torch.cuda.device(x.get_device()):  # Triton launches on the current one; -1 is none
            kernel[grid](
                x.contiguous().view(rows, inner),
                gate.contiguous(),
                up.contiguous(),
                _dense(gate_bias),
                _dense(up_bias),
                y,
                rows,
                inner,
                columns,
                activation=activation,
                **_constants(how, inner, [columns], x),
            )
    return y.view(*x.shape[:-1], columns)


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _constants(how: Plan, inner: int, sizes: Sequence[int], x: Tensor) -> dict[str, Any]:
    return {
        "is_cpu": x.device.type == "cpu",
        "even_n": all(n % how.block_n == 0 for n in sizes),
        "even_k": inner % how.block_k == 0,
        "block_m": how.block_m,
        "block_n": how.block_n,
        "block_k": how.block_k,
        "num_warps": how.warps,
        "num_stages": how.stages,
    }


# 4. When


def refusal(x: Tensor, *weights: Tensor) -> str | None:
    """Return why the kernels can't take layers, or None. Then the reference runs."""
    if reason := unfit(x, *weights) or _mismatch(x, weights):
        return reason
    if x.dtype == torch.float32:
        return "in single precision cuBLAS is faster"
    if not x.numel() or not all(w.numel() for w in weights):
        return "it is empty"
    rows = math.prod(x.shape[:-1])
    most = max(x.numel(), *(n for w in weights for n in (w.numel(), rows * w.shape[0])))
    if most > torch.iinfo(torch.int32).max:
        return f"the kernels count {most} elements in 32 bits"
    return None


def _mismatch(x: Tensor, weights: Sequence[Tensor]) -> str | None:
    if not 0 < len(weights) <= LAYERS:
        return f"{len(weights)} layers: the kernels take {LAYERS}"
    if not x.dim() or any(w.dim() != _MATRIX or w.shape[1] != x.shape[-1] for w in weights):
        return "its columns are not the weights'"
    return None


_MATRIX = 2


def pays(
    result: Tensor, rows: int, sizes: Sequence[tuple[int, int]], *, is_gated: bool
) -> str | None:
    """Return why the operators should not take the place of separate layers, or None.

    Args:
        result: of one of the layers.
        rows: M.
        sizes: N and K of each weight.
        is_gated: whether the first layer gates the second.
    """
    elements = sum(math.prod(x) for x in sizes)
    most = _most_rows(sizes, elements, is_gated=is_gated)
    reasons = {
        "Triton is not installed": not has_triton(),
        f"weights of {elements} elements were not measured, or not faster": (
            elements < FEWEST or most == 0
        ),
        f"{rows} rows: from 2 to {most} it was faster": not 1 < rows <= most,
        "sizes are not in eights": any(n % EIGHTS for x in sizes for n in x),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or unmeasured(result)


def _most_rows(sizes: Sequence[tuple[int, int]], elements: int, *, is_gated: bool) -> int:
    table = MOST_ROWS_GATED if is_gated else MOST_ROWS
    most = next((rows for limit, rows in table.items() if elements <= limit), 0)
    columns, inner = sum(n for n, _ in sizes), sizes[0][1]
    if columns < inner * (4 if is_gated else 1):
        most = min(most, MOST_ROWS_TALL)
    is_even = not any(n % block for x in sizes for n, block in zip(x, BLOCK, strict=True))
    return most if is_even else min(most, MOST_ROWS_ODD[is_gated])


# 5. Registration

few_row_linears: Callable[..., list[Tensor]]
"""The operator ``backbay::few_row_linears``: :func:`reference`."""

gated_linears: Callable[..., Tensor]
"""The operator ``backbay::gated_linears``: :func:`gated_reference`."""

_NAMES = ("few_row_linears", "gated_linears")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import few_row_linears_device as device  # noqa: PLC0415

        linears_kernel: Any = device.linears_kernel
        gated_kernel: Any = device.gated_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def linears(
        x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> list[Tensor]:
        if refusal(x, *weights):
            return reference(x, weights, biases)
        return launch(wrap_triton(linears_kernel), x, weights, biases)

    def gated(
        x: Tensor,
        gate: Tensor,
        up: Tensor,
        gate_bias: Tensor | None,
        up_bias: Tensor | None,
        activation: str,
    ) -> Tensor:
        if refusal(x, gate, up):
            return gated_reference(x, gate, up, gate_bias, up_bias, activation)
        kernel = wrap_triton(gated_kernel)
        return launch_gated(kernel, x, gate, up, gate_bias, up_bias, activation)

    return (
        define("backbay::few_row_linears", linears, mutates_args=()),
        define("backbay::gated_linears", gated, mutates_args=()),
    )


__getattr__ = registers(globals(), _NAMES, _operators)
