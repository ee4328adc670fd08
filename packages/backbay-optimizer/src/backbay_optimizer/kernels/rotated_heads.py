"""RMSNorm of each head and the rotary embedding after it, in one Triton kernel.

Queries and keys of Qwen3, Gemma 3 and OLMo 2 are normalised head by head, and then turned by their
positions: each element is added to its partner, half a head away, which is normalised by the same
number. Inductor reduces each head in one kernel and turns it in another, which reads it again. Here
a program holds some heads of a token and reads the token's angles once. vLLM has a fused kernel of
that kind (``fused_qk_norm_rope``).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, unmeasured, widened

WIDTHS = (64, 256)
"""Of a head."""

HELD = 4096
"""Elements of a program, about."""


class How(NamedTuple):
    """What is done, beside what it is done to."""

    eps: float = 1e-6
    offset: float = 0.0
    """What is added to the weight."""


def reference(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, how: How) -> Tensor:
    """Return normalised and turned heads, computed in float32 at least and rounded once.

    Args:
        x: (batch, tokens, heads, width).
        weight: (width,).
        cos: (batch or 1, tokens, width), cosines of angles.
        sin: likewise, their sines.
        how: see there.

    Returns:
        (batch, heads, tokens, width), laid out as a transposed (batch, tokens, heads, width).
    """
    wide = widened(x)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + how.eps)
    y = y * (widened(weight) + how.offset)
    first, second = y.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    cos, sin = (widened(t)[:, :, None] for t in (cos, sin))
    return (y * cos + turned * sin).to(x.dtype).transpose(1, 2)


def launch(  # noqa: PLR0917 (as the operator)
    kernel: Any, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, how: How
) -> Tensor:
    """Run the kernel, without a dispatcher or a check; as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU.
    """
    batch, tokens, heads, width = x.shape
    rows = _rows(x)
    angles = [t.reshape(-1, width) for t in (cos, sin)]
    angles = [t if t.stride(1) == 1 else t.contiguous() for t in angles]
    y = torch.empty((batch, tokens, heads, width), dtype=x.dtype, device=x.device)
    block = max(1, min(1 << (heads - 1).bit_length(), HELD // width))
    with torch.cuda.device(x.get_device()):  # Triton launches on the current one; -1 is none
        kernel[(batch * tokens, -(-heads // block))](
            *(rows, weight, *angles, y, heads, angles[0].shape[0]),
            *(rows.stride(0), angles[0].stride(0), angles[1].stride(0), *how),
            half=width // 2,
            block=block,
            num_warps=4,
        )
    return y.transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """Return a matrix of tokens, in each of which heads lie side by side."""
    batch, tokens, heads, width = x.shape
    rows = x.reshape(batch * tokens, heads * width)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def refusal(x: Tensor, *others: Tensor) -> str | None:
    """Return why the kernel can't take heads, or None. Then the reference runs."""
    if reason := unfit(x, *others):
        return reason
    if not x.numel():
        return "it is empty"
    width = x.shape[-1]
    if not WIDTHS[0] <= width <= WIDTHS[1] or width & (width - 1):
        return f"heads of {width}: the kernel takes powers of two from {WIDTHS[0]} to {WIDTHS[1]}"
    return None


def pays(x: Tensor, *others: Tensor) -> str | None:
    """Return why the operator should not take the place of what Inductor makes, or None."""
    if reason := refusal(x, *others) or unmeasured(x):
        return reason
    return None


rotated_heads: Callable[..., Tensor]
"""The operator ``backbay::rotated_heads``: :func:`reference`, with its numbers spelled out. It has
no gradient."""


@functools.cache
def _operators() -> tuple[Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import rotated_heads_device as device  # noqa: PLC0415

        kernel: Any = device.rotated_heads_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(  # noqa: PLR0917 (operators take no tuple of their own kind)
        x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, offset: float
    ) -> Tensor:
        how = How(eps, offset)
        if refusal(x, weight, cos, sin):
            return reference(x, weight, cos, sin, how)
        return launch(wrap_triton(kernel), x, weight, cos, sin, how)

    return (define("backbay::rotated_heads", forward, mutates_args=()),)


__getattr__ = registers(globals(), ("rotated_heads",), _operators)
