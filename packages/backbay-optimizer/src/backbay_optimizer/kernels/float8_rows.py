"""Rows in float8 with a scale for each, of what a norm or a gate gives, in Triton.

A row is read once, held in registers, and written. A compiler's kernel goes over a row once for its
sum of squares, once for its maximum and once for the result, and computes norm or gate each time::

    v = x                                    or with a residual  v = x + residual
    v = v * rsqrt(mean(v^2) + eps) * (weight + offset)           "rms_norm"
    v = silu(v) * gated                                          "silu"
    scale = max(max(|v|), floor) / most
    y = v / scale

That is dynamic quantisation with a scale for each token, as in torchao and vLLM; norm and
quantisation in one kernel are vLLM's ``rms_norm_dynamic_per_token_quant``. All is computed in
float32: what PyTorch rounds to 16 bits in between is not rounded here.

What must move, of 16 bits: 3 bytes an element, 2 that are read and 1 that is written. A gate reads
2 more; a residual has 4 more, 2 that are read and 2 of the sum. A row's scale is 4 bytes.
Operations: 2 an element for the largest and its quotient, 4 more of a norm; a gate has an
exponential and 4 more, a residual 1.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
CAPABLE = (8, 9)
"""Compute capability of the first GPUs that have it."""

KINDS = ("", "rms_norm", "silu")
"""What is quantised: ``x`` itself, its RMSNorm, or the product of its SiLU with another."""

COLUMNS = (2048, 16384)
"""The fewest and the most that were measured (``benchmarks/conditions.py float8_rows``)."""

FEWEST_ELEMENTS = 2**19
"""Likewise: 64 x 8192."""

_EIGHTS = 8
_WIDTH_OF_EIGHT = 8192
"""Columns up to which a row has at most eight warps."""


class Recipe(NamedTuple):
    """What becomes of rows before they are rounded."""

    kind: str = ""
    """One of `KINDS`."""
    eps: float = 0.0
    """Added to the mean square of a norm."""
    offset: float = 0.0
    """Added to the weight of a norm."""
    floor: float = 0.0
    """What the largest magnitude of a row counts as at least."""
    most: float = LARGEST
    """What that magnitude becomes."""


class Plan(NamedTuple):
    """How a row is shared out."""

    warps: int


LIMITS = {"warps": (1, 32)}
"""Of plans, where another GPU's is searched."""


def plan(width: int, kind: str, *, is_added: bool) -> Plan:
    """Return how to share out a row of so many lanes, of a kind, perhaps with a residual."""
    if kind == "rms_norm" and not is_added and width > _WIDTH_OF_EIGHT:
        # Of 16 each needs so many registers that a multiprocessor holds one row, not two.
        return Plan(8)
    return Plan(max(1, min(width // 1024, 32)))


# 1. The reference


def reference(
    x: Tensor, by: Tensor | None, residual: Tensor | None, recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows in float8, their scales, and ``x`` with the residual.

    Args:
        x: (..., columns), of any floating-point dtype.
        by: of "rms_norm" the weight, (columns,); of "silu" what is gated, like ``x``.
        residual: added to ``x`` first, like it, or None: then the third result is empty.
        recipe: the rest.

    Returns:
        (..., columns) of `FLOAT8`; (..., 1) of float32; ``x + residual`` in the dtype of ``x``.
    """
    total = x.new_empty(0) if residual is None else x + residual
    v = widened(x if residual is None else total)
    if recipe.kind == "rms_norm":
        assert by is not None
        rstd = (v.pow(2).mean(-1, keepdim=True) + recipe.eps).rsqrt()
        v = v * rstd * (widened(by) + recipe.offset)
    elif recipe.kind == "silu":
        assert by is not None
        v = F.silu(v) * widened(by)
    scale = v.abs().amax(-1, keepdim=True).clamp(min=recipe.floor) / recipe.most
    return (v / scale).clamp(-LARGEST, LARGEST).to(FLOAT8), scale.float(), total


# 2. Launching


def launch(  # noqa: PLR0917 (a search gives them by position)
    kernel: Any,
    x: Tensor,
    by: Tensor | None,
    residual: Tensor | None,
    recipe: Recipe,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel, without a dispatcher or a check; as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how, by default `plan`.
    """
    columns = x.shape[-1]
    width = 1 << (columns - 1).bit_length()
    this = Launch(
        run=launch,
        kernels=[kernel],
        given=(x, by, residual, recipe),
        reference=reference,
        limits=LIMITS,
    )
    how = chosen or plan_here(plan(width, recipe.kind, is_added=residual is not None), this)
    rows = _rows(x)
    added = None if residual is None else _rows(residual)
    gated = None if by is None else _rows(by) if recipe.kind == "silu" else by.contiguous()
    y = torch.empty(x.shape, dtype=FLOAT8, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    total = torch.empty(0 if residual is None else x.shape, dtype=x.dtype, device=x.device)
    tensors = (rows, gated, added, None if residual is None else total, y, scale)
    strides = [0 if t is None or t.dim() == 1 else t.stride(0) for t in tensors[:3]]
    kind, *numbers = recipe
    constants = {"columns": columns, "width": width, "kind": kind}
    with torch.cuda.device(x.get_device()):  # Triton launches on the current one; -1 is none
        kernel[(rows.shape[0],)](
            *(*tensors, *strides, *numbers),
            **constants,
            num_warps=how.warps,
        )
    return y, scale, total


def _rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix of its rows, whose elements lie side by side."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])  # noqa: PLR2004 (it is one)
    return rows if rows.stride(1) == 1 else rows.contiguous()


# 3. When


def refusal(x: Tensor, *others: Tensor | None) -> str | None:
    """Return why the kernel can't take rows, or None. Then the reference runs."""
    if reason := unfit(x, *(t for t in others if t is not None)):
        return reason
    if not x.numel():
        return "it is empty"
    if x.shape[-1] > COLUMNS[1]:
        return f"{x.shape[-1]} columns: a program holds up to {COLUMNS[1]}"
    if torch.cuda.get_device_capability(x.device) < CAPABLE:
        return f"Triton has {FLOAT8} from compute capability 8.9 on"
    return None


def pays(x: Tensor, *others: Tensor | None) -> str | None:
    """Return why the operator should not take the place of what Inductor makes, or None."""
    columns = x.shape[-1]
    if not COLUMNS[0] <= columns <= COLUMNS[1] or columns % _EIGHTS:
        return f"{columns} columns: it was measured from {COLUMNS[0]} to {COLUMNS[1]}, in eights"
    if x.dtype == torch.float32:
        return "it was measured in 16 bits"
    # Of symbols what they are now: to compare them would guard on the answer.
    sizes = [n if isinstance(n, int) else n.node.hint for n in x.shape]
    if None in sizes:
        return "only a run tells the number of its rows"
    if math.prod(sizes) < FEWEST_ELEMENTS:
        return f"it has fewer than {FEWEST_ELEMENTS} elements: that was not measured"
    return refusal(x, *others) or unmeasured(x)


# 4. Registration

float8_rows: Callable[..., tuple[Tensor, Tensor, Tensor]]
"""The operator ``backbay::float8_rows``: :func:`reference`, with its recipe spelled out. It has no
gradient."""


@functools.cache
def _operators() -> tuple[Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import float8_rows_device as device  # noqa: PLC0415

        kernel: Any = device.float8_rows_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(  # noqa: PLR0917 (operators take no tuple of their own kind)
        x: Tensor,
        by: Tensor | None,
        residual: Tensor | None,
        kind: str,
        eps: float,
        offset: float,
        floor: float,
        most: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        recipe = Recipe(kind, eps, offset, floor, most)
        if refusal(x, by, residual):
            return reference(x, by, residual, recipe)
        return launch(wrap_triton(kernel), x, by, residual, recipe)

    return (define("backbay::float8_rows", forward, mutates_args=()),)


__getattr__ = registers(globals(), ("float8_rows",), _operators)
