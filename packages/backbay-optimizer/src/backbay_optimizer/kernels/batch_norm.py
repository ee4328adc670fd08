"""Batch norm in training with what activates it, and its gradients, with channels last, in Triton.

From Ioffe and Szegedy, Batch Normalization, 2015 (arXiv 1502.03167): each channel is normalised by
its own mean and variance over the batch, then scaled and shifted. With ``n = (x - mean) * rstd``,
``z = n * weight + bias``, ``y = f(z)``, ``g = dy * f'(z)`` and N values of a channel::

    dbias = sum(g)        dweight = sum(g * n)
    dx = weight * rstd * (g - dbias / N - n * dweight / N)

The kernels do the reductions alone: mean and variance in one read of ``x``, both sums of the
gradient in one of ``dy`` and ``x``. What is pointwise is PyTorch's operators, which a compiler
sees and fuses with its neighbours. Backward reads neither ``y`` nor ``z``: both are computed from
``x`` once more. So with an activation it moves 5 tensors of the size of ``x``, where a compiler
that saves ``y`` for its mask moves 7. Operations of the kernels, in float32: 4 an element forward,
which are a shift, a square and two sums; 4 backward, and with an activation 2 more, beside those of
``f'``.

All sums are of the same order each time: results are the same bits.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured
from backbay_optimizer.kernels.images import flattened

PAYS_FROM = 2**20
"""Elements from which whole models were measured: the smallest batch norm of EfficientNet-B0 with
128 images has 1.2 million (``benchmarks/cuda_graphs.py efficientnet_b0,128,train``)."""

ACTIVATIONS = ("none", "relu", "silu", "hardswish")
"""In the order of the numbers that the kernels know them by."""

_EIGHTS = 8
"""Channels that are read at once: kernels know that there is a multiple of them."""


# 1. The reference


def reference_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel of (N, C, ...), in float32 at least."""
    wide, others = widened(x), _others(x)
    return wide.mean(others), wide.var(others, correction=0)


def reference_sums(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by bias and weight, in float32 at least."""
    n, z = _normalised(x, mean, rstd, weight, bias)
    g = _before(widened(dy), z, activation)
    return g.sum(_others(x)), (g * n).sum(_others(x))


def _normalised(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``n`` and ``z``."""
    n = (widened(x) - _spread(mean, x)) * _spread(rstd, x)
    return n, n * _spread(weight, x) + _spread(bias, x)


def _activated(z: Tensor, activation: str) -> Tensor:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "silu": F.silu,
        "hardswish": F.hardswish,
    }
    return z if activation == "none" else functions[activation](z)


def _before(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    """Return the gradient before an activation, as torch has it where that bends, and for NaN."""
    if activation == "relu":
        return torch.where(z <= 0, 0.0, dy)
    if activation == "silu":
        s = torch.sigmoid(z)
        return dy * (s * (1 + z * (1 - s)))
    if activation == "hardswish":
        inner = torch.where(z < _BEND, dy * (z / _BEND + 0.5), dy)
        return torch.where(z <= -_BEND, 0.0, inner)
    return dy


_BEND = 3.0
"""Of hard-swish: beyond, it is the identity, and below its negative it is 0."""


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """Return values of channels so that they broadcast over ``x``."""
    return widened(values).reshape(-1, *(1 for _ in x.shape[2:]))


def _others(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


# 2. How a table is cut


class Plan(NamedTuple):
    """How large a program's piece is."""

    block_r: int
    """Rows of a tile."""
    block_c: int
    """Channels of it."""
    programs: int
    """Of each block of channels: they take its tiles in turns."""
    warps: int = 4
    """Of a program."""
    stages: int = 1
    """Tiles that are loaded ahead, through shared memory; 1 loads into registers."""


LIMITS = {
    "block_r": (16, 512),
    "block_c": (16, 64),
    "programs": (8, 4096),
    "warps": (1, 16),
    "stages": (1, 4),
}
"""Of plans, where another GPU's is searched."""


def plan(channels: int, tensors: int) -> Plan:
    """Return how to cut a table, of which one tensor or two are read: by search on an H100."""
    block_c = 32 if -(-channels // 32) * 32 <= _PADDED * channels else 16
    tile, programs, stages = 2048, 528, 2
    if tensors == 1:
        tile, programs, stages = (2048, 1056, 1) if channels % 64 == 0 else (4096, 528, 1)
    blocks = -(-channels // block_c)
    return Plan(tile // block_c, block_c, max(1, programs // blocks), stages=stages)


_PADDED = 1.4
"""Times as many channels as there are, of which a block may be."""


# 3. Launching


def launch_statistics(kernel: Any, x: Tensor, chosen: Plan | None = None) -> tuple[Tensor, Tensor]:
    """Run the kernel of statistics, without a dispatcher or a check; as `reference_statistics`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how to cut, by default `plan`.
    """
    channels = x.shape[1]
    rows = x.numel() // channels
    this = Launch(
        run=launch_statistics,
        kernels=[kernel],
        given=[x],
        reference=reference_statistics,
        limits=LIMITS,
    )
    how = chosen or plan_here(plan(channels, 1), this)
    partial = x.new_empty((2, channels, how.programs), dtype=torch.float32)
    _run(kernel, (flattened(x), partial), rows, channels, how)
    means, squares = partial
    # Of a program, how many rows: it takes tiles in turns, and the first one the last, cut tile.
    tiles = -(-rows // how.block_r)
    program = torch.arange(how.programs, device=x.device)
    taken = torch.div(tiles - 1 - program, how.programs, rounding_mode="floor") + 1
    cut = tiles * how.block_r - rows
    count = (taken * how.block_r - torch.where(program == 0, cut, 0)).float()
    mean = (means * count).sum(1) / rows
    off = means - mean[:, None]
    return mean, (squares + count * off * off).sum(1) / rows


def launch_sums(
    kernel: Any,
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of the gradient's sums, likewise; as `reference_sums`."""
    channels = x.shape[1]
    this = Launch(
        run=launch_sums,
        kernels=[kernel],
        given=(dy, x, mean, rstd, weight, bias, activation),
        reference=reference_sums,
        limits=LIMITS,
        positive=(rstd,),
    )
    how = chosen or plan_here(plan(channels, 2), this)
    partial = mean.new_empty((2, channels, how.programs))
    vectors = (t.contiguous() for t in (mean, rstd, weight, bias))
    tensors = (flattened(dy), flattened(x), *vectors, partial)
    number = ACTIVATIONS.index(activation)
    _run(kernel, tensors, x.numel() // channels, channels, how, activation=number)
    # Two sums, not one that is cut: an operator's results may not share memory. Both are of all
    # that was written, so that Inductor takes them in one kernel, not in two.
    which = torch.arange(2, device=x.device)[:, None, None]
    dbias, dweight = (torch.where(which == own, partial, 0.0).sum((0, 2)) for own in range(2))
    return dbias, dweight


def _run(
    kernel: Any, tensors: tuple[Tensor, ...], rows: int, channels: int, how: Plan, **kinds: int
) -> None:
    multiple = _EIGHTS if channels % _EIGHTS == 0 else 1
    constants = {
        **kinds,
        "multiple": multiple,
        "is_whole": bool(
            rows % how.block_r == 0
            and channels % how.block_c == 0
            and rows >= how.block_r * how.programs
        ),
        "block_r": how.block_r,
        "block_c": how.block_c,
        "stages": how.stages,
        "num_warps": how.warps,
    }
    grid = (-(-channels // how.block_c), how.programs)
    with torch.cuda.device(tensors[-1].get_device()):  # Triton launches on the current one
        kernel[grid](*tensors, rows, channels // multiple, **constants)


# 4. When


def refusal(x: Tensor) -> str | None:
    """Return why the kernels can't take ``x``, or None. Then the reference runs."""
    if reason := unfit(x):
        return reason
    if not x.numel():
        return "it is empty"
    return None


def pays(x: Tensor) -> str | None:
    """Return why the operator should not take the place of a batch norm in training, or None."""
    if reason := refusal(x):
        return reason
    if x.shape[1] % _EIGHTS:
        return f"{x.shape[1]} channels: they are not a multiple of {_EIGHTS}"
    if x.numel() < PAYS_FROM:
        return f"{x.numel()} elements: below {PAYS_FROM} it was not measured"
    return unmeasured(x)


# 5. Registration

Forward = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
Sums = Callable[..., tuple[Tensor, Tensor]]

batch_norm: Forward
"""The operator ``backbay::batch_norm``: y in the dtype of x, and mean, biased variance and rstd."""

batch_norm_sums: Sums
"""The operator ``backbay::batch_norm_sums``: :func:`reference_sums`."""

_NAMES = ("batch_norm", "batch_norm_sums")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import batch_norm_device as device  # noqa: PLC0415

        statistics_kernel: Any = device.batch_norm_statistics_kernel
        sums_kernel: Any = device.batch_norm_sums_kernel
    # Compilers see through a triton_op, to the kernel and to what is pointwise; a custom_op is
    # opaque to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float, activation: str = "none"
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if x.numel() == x.shape[1]:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {x.size()}"
            )
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
        if refusal(x):
            mean, variance = reference_statistics(x)
        else:
            mean, variance = launch_statistics(wrap_triton(statistics_kernel), x)
        rstd = (variance + eps).rsqrt()
        _, z = _normalised(x, mean, rstd, weight, bias)
        return _activated(z, activation).to(x.dtype), mean, variance, rstd

    def sums(
        dy: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        bias: Tensor,
        activation: str = "none",
    ) -> tuple[Tensor, Tensor]:
        if refusal(x):
            return reference_sums(dy, x, mean, rstd, weight, bias, activation)
        kernel = wrap_triton(sums_kernel)
        return launch_sums(kernel, dy, x, mean, rstd, weight, bias, activation)

    made = (
        define("backbay::batch_norm", forward, mutates_args=()),
        define("backbay::batch_norm_sums", sums, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, ctx.activation = inputs
    _, mean, variance, rstd = output
    ctx.save_for_backward(x, weight, bias, mean, rstd)
    ctx.mark_non_differentiable(mean, variance, rstd)


def _vjp(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    dbias, dweight = _operators()[1](dy, x, mean, rstd, weight, bias, ctx.activation)
    dx = None
    if ctx.needs_input_grad[0]:
        count = x.numel() // x.shape[1]
        n, z = _normalised(x, mean, rstd, weight, bias)
        g = _before(widened(dy), z, ctx.activation)
        centred = g - _spread(dbias / count, x) - n * _spread(dweight / count, x)
        dx = (centred * _spread(rstd * widened(weight), x)).to(x.dtype)
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype), None, None
