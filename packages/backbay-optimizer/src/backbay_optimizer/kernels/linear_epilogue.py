"""A linear layer with what follows it, in one kernel, in Triton.

The product of rows by a weight, then what cuBLASLt has no epilogue for: a bias; statistics of a
batch norm; a scale and a shift for each column; GELU by ``erf``, SiLU, ReLU or hard-swish; and a
residual that is added. Before the product, rows of an image may be scaled by a gate, as
squeeze-and-excitation does (Hu and others, 2018, arXiv 1709.01507). A convolution of one pixel with
channels last is the same. That a tile's epilogue runs on its accumulators is CUTLASS's (Kerr and
others, 2017), and Inductor's template for ``max_autotune`` does it likewise.

What must move: the rows, the weight, the residual, and the result, once each. Operations: ``2 K``
for each result of ``K`` products. On an H100, with 3 TB/s and about 600 TFLOP/s in 16 bits, a layer
waits for memory where K and N are a few hundred.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

EIGHTS = 8
"""Elements of 16 bits that are read at once."""

PAYS_FROM = 2**21
"""Results from which it pays; with a gate, results or elements of the rows, whichever are more."""

MOST_ACTIVATED = 1024
"""Products for each result up to which it pays, with an activation."""

MOST_PLAIN = 768
"""Likewise with a norm, or a scale and a residual, alone."""

MOST_GATED = 1152
"""Likewise with a gate."""

ENTERED = 128
"""Results of a row up to which it pays to normalise and activate rows once more, in the kernel,
in place of reading what was written."""

_HALF = 2

Activation = Literal["none", "gelu", "silu", "relu", "hardswish"]
"""What it computes; GELU is the one by ``erf``."""


# 1. The reference

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "hardswish": F.hardswish,
}


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str = "none",
    mean: Tensor | None = None,
    var: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    entry_mean: Tensor | None = None,
    entry_var: Tensor | None = None,
    entry_scale: Tensor | None = None,
    entry_shift: Tensor | None = None,
    entry_activation: str = "none",
    entry_eps: float = 0.0,
) -> Tensor:
    """Return ``activation(norm(entered @ weight.T + bias)) + residual``, rounded once.

    Args:
        x: (..., K), of a floating-point dtype; those of 16 bits are computed in float32.
        weight: (N, K), of the same dtype.
        bias: (N,), or None for zeros.
        activation: one of `Activation`.
        mean: (N,), which is subtracted after the bias; None for no statistics.
        var: (N,); the difference is multiplied by ``(var + eps) ** -0.5``.
        scale: (N,), a factor after that.
        shift: (N,), added after that.
        eps: added to the variance.
        residual: (..., N), added to what is activated.
        gate: (G, K): of G equal parts of all rows, each has a factor for each of its K elements.
        entry_mean: (K,), of a norm before the product, as that after it.
        entry_var: likewise; and with these two are a scale and a shift.
        entry_scale: likewise.
        entry_shift: likewise.
        entry_activation: of rows that were so normalised; then comes the gate, and ``entered`` is
            rounded to the dtype.
        entry_eps: added to the variance.

    Returns:
        (..., N), contiguous, in the dtype of ``x``.
    """
    rows = widened(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    rows = _normed(rows, entry_mean, entry_var, entry_scale, entry_shift, entry_eps)
    rows = _ACTIVATIONS[entry_activation](rows)
    if gate is not None:
        parts = rows.reshape(gate.shape[0], -1, gate.shape[1]) * widened(gate)[:, None, :]
        rows = parts.reshape(rows.shape)
    y = F.linear(widened(rows.to(x.dtype)), widened(weight))
    if bias is not None:
        y = y + bias
    y = _ACTIVATIONS[activation](_normed(y, mean, var, scale, shift, eps))
    if residual is not None:
        y = y + residual.reshape(y.shape)
    rounded: Tensor = y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])
    return rounded


def _normed(
    y: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is not None and var is not None:
        y = (y - mean) * (widened(var) + eps).rsqrt()
    y = y if scale is None else y * scale
    return y if shift is None else y + shift


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
    stages: int = 3
    sweep: bool = False
    """Whether a program does all columns of its rows; then ``block_k`` is a whole row."""


LIMITS = {"block_m": (16, 256), "block_n": (16, 256), "warps": (2, 16), "stages": (1, 5)}
"""Of plans, where another GPU's is searched."""


def plan(
    rows: int,
    inner: int,
    columns: int,
    itemsize: int = 2,
    *,
    is_normed: bool = False,
    is_gated: bool = False,
    is_entered: bool = False,
) -> Plan:
    """Return how to cut a product: by search on an H100, in bfloat16.

    Args:
        rows: M.
        inner: K.
        columns: N.
        itemsize: bytes of an element.
        is_normed: whether there are statistics.
        is_gated: whether there is a gate.
        is_entered: whether rows are activated before the product.
    """
    n, k = max(16, _power_from(columns)), max(16, _power_from(inner))
    if itemsize > _HALF:
        return Plan(64, min(n, 64), 32, 4, 2)
    if is_entered or is_gated:
        return _entered_plan(n, k) if is_entered else _gated_plan(rows, columns, n, k)
    if k <= 128:  # noqa: PLR2004 (by search, as all of these)
        return _one_step_plan(columns, n, k, is_normed=is_normed)
    if columns <= 192:  # noqa: PLR2004
        return Plan(64, min(n, 128), 64, 4, 3)
    if is_normed or inner <= 192:  # noqa: PLR2004
        return Plan(64 if inner <= 192 else 128, 128, 32, 4, 4)  # noqa: PLR2004
    return Plan(128, 128 if inner < 1024 else 256, 64, 8, 3)  # noqa: PLR2004


def _one_step_plan(columns: int, n: int, k: int, *, is_normed: bool) -> Plan:
    """Whole rows are multiplied at once."""
    if k <= 16 and columns > 64:  # noqa: PLR2004
        return Plan(128, 32, k, 4, 2, sweep=True)
    if k <= 64 or is_normed:  # noqa: PLR2004
        return Plan(64, min(n, 64), k, 4, 1)
    return Plan(128, min(n, 128), k, 4, 1)


def _entered_plan(n: int, k: int) -> Plan:
    if k <= 32:  # noqa: PLR2004
        return Plan(128, min(n, 128), k, 4, 1)
    if n <= 64:  # noqa: PLR2004
        return Plan(128 if n <= 32 else 64, n, 32, 4, 4)  # noqa: PLR2004
    return Plan(64, 128, 64, 4, 3)


def _gated_plan(rows: int, columns: int, n: int, k: int) -> Plan:
    if k <= 128:  # noqa: PLR2004
        return Plan(128, min(n, 128), k, 4, 1)
    if n > 128 and rows >= 128 * 64:  # noqa: PLR2004 (as many programs as keep it busy)
        return Plan(128, 256, 64, 8, 4)
    return Plan(128 if columns <= 32 else 64, min(n, 128), 64, 4, 3)  # noqa: PLR2004


def _power_from(n: int) -> int:
    return 1 << (n - 1).bit_length()


# 3. Launching


def launch(
    kernel: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str = "none",
    mean: Tensor | None = None,
    var: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    entry_mean: Tensor | None = None,
    entry_var: Tensor | None = None,
    entry_scale: Tensor | None = None,
    entry_shift: Tensor | None = None,
    entry_activation: str = "none",
    entry_eps: float = 0.0,
    chosen: Plan | None = None,
) -> Tensor:
    """Run the kernel, without a dispatcher or a check; the same as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how to cut, by default `plan`.
    """
    columns, inner = int(weight.shape[0]), int(weight.shape[1])
    rows = math.prod(x.shape[:-1])
    y = x.new_empty(*x.shape[:-1], columns)
    if not y.numel():
        return y
    kinds = {"is_normed": mean is not None, "is_gated": gate is not None}
    kinds["is_entered"] = entry_activation != "none"
    after = (activation, mean, var, scale, shift, eps, residual, gate)
    entry = (entry_mean, entry_var, entry_scale, entry_shift, entry_activation, entry_eps)
    this = Launch(
        run=launch,
        kernels=[kernel],
        given=(x, weight, bias, *after, *entry),
        reference=reference,
        limits=LIMITS,
        positive=(var, entry_var),
    )
    how = chosen or plan_here(plan(rows, inner, columns, x.dtype.itemsize, **kinds), this)
    each = rows if gate is None else rows // gate.shape[0]
    vectors = map(_dense, (bias, mean, var, scale, shift, residual, gate, *entry[:4]))
    tiles = 1 if how.sweep else -(-columns // how.block_n)
    grid = (-(-rows // how.block_m) * tiles,)
    with torch.cuda.device(y.get_device()):  # Triton launches on the current one; -1 is none
        kernel[grid](
            *(x.contiguous(), weight.contiguous(), *vectors, y, rows, each, eps, entry_eps),
            inner=inner,
            columns=columns,
            activation=activation,
            entry_activation=entry_activation,
            few=gate is not None and each >= how.block_m,
            is_cpu=y.device.type == "cpu",
            sweep=how.sweep,
            block_m=how.block_m,
            block_n=how.block_n,
            block_k=how.block_k,
            num_warps=how.warps,
            num_stages=how.stages,
        )
    return y


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


# 4. When


def refusal(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernel can't take a product, or None. Then the reference runs."""
    if reason := unfit(x, weight):
        return reason
    if weight.numel() > torch.iinfo(torch.int32).max:
        return f"the kernel counts a weight's {weight.numel()} elements in 32 bits"
    return None


def pays(
    result: Tensor, rows: int, inner: int, columns: int, *, is_activated: bool, is_gated: bool
) -> str | None:
    """Return why the operator should not take the place of separate steps, or None.

    Args:
        result: of the last step.
        rows: of the product.
        inner: K.
        columns: N.
        is_activated: whether an activation is among the steps.
        is_gated: whether rows are scaled before the product.
    """
    saved = rows * (max(inner, columns) if is_gated else columns)
    most = MOST_GATED if is_gated else MOST_ACTIVATED if is_activated else MOST_PLAIN
    reasons = {
        "Triton is not installed": not has_triton(),
        f"{columns} by {inner}: sizes are not in eights": inner % EIGHTS or columns % EIGHTS,
        f"{columns} results of {inner}: where they are fewer it was not faster in a graph": (
            is_activated and columns < inner
        ),
        f"{saved} elements: below {PAYS_FROM} it was not faster": saved < PAYS_FROM,
        f"{inner} products for each result: it was faster up to {most}": inner > most,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or unmeasured(result)


# 5. Registration

linear_epilogue: Callable[..., Tensor]
"""The operator ``backbay::linear_epilogue``: :func:`reference`."""


@functools.cache
def _operators() -> tuple[Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import linear_epilogue_device as device  # noqa: PLC0415

        kernel: Any = device.linear_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: str = "none",
        mean: Tensor | None = None,
        var: Tensor | None = None,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        eps: float = 0.0,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
        entry_mean: Tensor | None = None,
        entry_var: Tensor | None = None,
        entry_scale: Tensor | None = None,
        entry_shift: Tensor | None = None,
        entry_activation: str = "none",
        entry_eps: float = 0.0,
    ) -> Tensor:
        after = (activation, mean, var, scale, shift, eps, residual, gate)
        entry = (entry_mean, entry_var, entry_scale, entry_shift, entry_activation, entry_eps)
        given = (x, weight, bias, *after, *entry)
        if refusal(x, weight):
            return reference(*given)
        return launch(wrap_triton(kernel), *given)

    return (define("backbay::linear_epilogue", forward, mutates_args=()),)


__getattr__ = registers(globals(), ("linear_epilogue",), _operators)
