"""RMSNorm of each head and the rotary embedding after it, in one Triton kernel.

Queries and keys of Qwen3 and Gemma 3 are normalised head by head, and then turned by their
positions: each element is added to its partner, half a head away, which is normalised by the same
number. Inductor reduces each head in one kernel and turns it in another, which reads it again. Here
a program holds some heads of a token and reads the token's angles once, and queries and keys are
the work of one launch. vLLM has a fused kernel of that kind (``fused_qk_norm_rope``).

What must move: each element of a head is read once and written once, and the cosines and sines of a
token are read once for all its heads. That is 4 bytes an element in 16 bits, and 4 for each column
of a token's angles. Operations: 7 an element, 4 of the norm and 3 of the turn.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured


class Plan(NamedTuple):
    """What a program is."""

    block: int
    """Heads that it holds."""
    warps: int


LAUNCHES = {64: Plan(8, 2), 128: Plan(8, 4), 256: Plan(4, 1)}
"""By the width of heads; the fastest of 16 on an H200."""

LIMITS = {"block": (1, 64), "warps": (1, 16)}
"""Of plans, where another GPU's is searched."""


def plan(heads: Sequence[int], width: int) -> Plan:
    """Return how much a program holds of tensors of so many heads."""
    found = LAUNCHES[width]
    return found._replace(block=min(found.block, 1 << (max(heads) - 1).bit_length()))


FEWEST = {64: 4, 128: 4, 256: 1}
"""By the width of heads: as many are computed so, at least. Two of 128, a quarter of what a program
holds, beside 16 of queries took 0.99 of Inductor's time on an H200, and one that was left to it
0.84 (``benchmarks/conditions.py``)."""

TENSORS = 2
"""As many are one launch."""


class How(NamedTuple):
    """What is done, beside what it is done to."""

    eps: float = 1e-6
    offset: float = 0.0
    """What is added to weights."""


def reference(
    xs: Sequence[Tensor], weights: Sequence[Tensor], cos: Tensor, sin: Tensor, how: How
) -> list[Tensor]:
    """Return normalised and turned heads, computed in float32 at least and rounded once.

    Args:
        xs: tensors of (batch, tokens, heads, width), whose heads may be of several numbers.
        weights: (width,) each.
        cos: (batch or 1, tokens, width), cosines of angles.
        sin: likewise, their sines.
        how: see there.

    Returns:
        (batch, heads, tokens, width), laid out as a transposed (batch, tokens, heads, width).
    """
    cos, sin = (widened(t)[:, :, None] for t in (cos, sin))
    made = []
    for x, weight in zip(xs, weights, strict=True):
        wide = widened(x)
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + how.eps)
        y = y * (widened(weight) + how.offset)
        first, second = y.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        made.append(_transposed((y * cos + turned * sin).to(x.dtype).contiguous()))
    return made


def launch(  # noqa: PLR0917 (as the operator)
    kernel: Any,
    xs: Sequence[Tensor],
    weights: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    how: How,
    chosen: Plan | None = None,
) -> list[Tensor]:
    """Run the kernel, without a dispatcher or a check; as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` are its programs, by default `plan`.
    """
    heads = [x.shape[2] for x in xs]
    this = Launch(
        run=launch,
        kernels=[kernel],
        given=(xs, weights, cos, sin, how),
        reference=reference,
        limits=LIMITS,
    )
    batch, tokens, _, width = xs[0].shape
    program = chosen or plan_here(plan(heads, width), this)
    angles = [t.reshape(-1, width) for t in (cos, sin)]
    angles = [t if t.stride(1) == 1 else t.contiguous() for t in angles]
    rows = [_rows(x) for x in xs]
    weights = [x.contiguous() for x in weights]
    ys = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in xs]
    blocks = [-(-n // program.block) for n in heads]
    # A result that is given twice would be copied by compilers, which take both for written.
    other = ys[1] if len(xs) > 1 else rows[0]
    with torch.cuda.device(xs[0].get_device()):  # Triton launches on the current one; -1 is none
        kernel[(batch * tokens, sum(blocks))](
            *(rows[0], rows[-1], weights[0], weights[-1], *angles, ys[0], other),
            *(heads[0], heads[-1], angles[0].shape[0]),
            *(x.stride(0) for x in (rows[0], rows[-1], *angles)),
            *how,
            half=width // 2,
            block=program.block,
            blocks=blocks[0],
            is_alone=len(xs) == 1,
            num_warps=program.warps,
        )
    return [_transposed(y) for y in ys]


def _transposed(y: Tensor) -> Tensor:
    """Return heads before tokens, with the strides that sums in eager have."""
    batch, tokens, heads, width = y.shape
    if heads == 1 or (type(tokens) is int and tokens == 1):
        return y.view(batch, heads, tokens, width)
    return y.transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """Return a matrix of tokens, in each of which heads lie side by side."""
    batch, tokens, heads, width = x.shape
    rows = x.reshape(batch * tokens, heads * width)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def refusal(xs: Sequence[Tensor], *others: Tensor) -> str | None:
    """Return why the kernel can't take heads, or None. Then the reference runs."""
    if reason := unfit(*xs, *others):
        return reason
    if len(xs) > TENSORS:
        return f"{len(xs)} tensors: the kernel takes up to {TENSORS}"
    if len({str(tuple(x.shape)) for x in others[-2:]}) > 1:  # symbols are compared as text
        return "cosines and sines are of several shapes"
    if not all(x.numel() for x in xs):
        return "it is empty"
    width = xs[0].shape[-1]
    if width not in LAUNCHES:
        return f"heads of {width}: the kernel takes {', '.join(map(str, LAUNCHES))}"
    return None


def pays(x: Tensor, *others: Tensor) -> str | None:
    """Return why the operator should not take the place of what Inductor makes, or None."""
    if reason := refusal([x], *others):
        return reason
    heads, width = x.shape[2:]
    if heads < FEWEST[width]:
        return f"{heads} heads of {width}: too few to fill a program"
    return unmeasured(x)


rotated_heads: Callable[..., list[Tensor]]
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
        xs: Sequence[Tensor],
        weights: Sequence[Tensor],
        cos: Tensor,
        sin: Tensor,
        eps: float,
        offset: float,
    ) -> list[Tensor]:
        how = How(eps, offset)
        if refusal(xs, *weights, cos, sin):
            return reference(xs, weights, cos, sin, how)
        return launch(wrap_triton(kernel), xs, weights, cos, sin, how)

    return (define("backbay::rotated_heads", forward, mutates_args=()),)


__getattr__ = registers(globals(), ("rotated_heads",), _operators)
