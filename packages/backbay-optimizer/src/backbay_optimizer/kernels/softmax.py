"""Softmax, its logarithm and cross entropy of rows with many columns, in Triton.

A row is read once. Inductor's online softmax computes two exponentials an element, which take twice
as long as to read it. What a loss needs of a row is its maximum and its sum of exponentials; its
gradient is pointwise by them, and Inductor's. Few rows are cut into parts, whose results are
joined by operators of PyTorch's.

What must move: each element is read once, and a written softmax is written once; of losses 8 bytes
a row are written, or a part of one. Rows of more than `HELD` columns are read twice where their
softmax is written. An exponential takes as long as to read its element in 16 bits, so that their
number counts, too: one an element each time it is read.

Results are eager's, also where it gives NaN: rows of nothing but minus infinity, and rows with NaN
or plus infinity.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels.conditions import (
    SECOND_DIMENSION,
    has_triton,
    registers,
    unfit,
    widened,
)
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

FEWEST_COLUMNS = 4096
"""Below, Inductor holds a row in registers."""

FEWEST_ELEMENTS = 2**26
"""From which it is used: two and a half times what the L2 cache holds, where to read twice costs
twice. It was measured with 262 million and more (``benchmarks/patterns.py``)."""

FEW_ROWS = 264
"""Rows that are not enough programs for an H100, which has 132 multiprocessors."""

CHUNK = 8192
"""Columns of a part of a row, where there are few rows."""

MOST_COLUMNS = SECOND_DIMENSION * CHUNK
"""Of a row, whose parts are the second dimension of a grid."""

_EIGHTS = 8
_BITS = math.log2(math.e)


class Plan(NamedTuple):
    """How a kernel is launched."""

    depth: int
    """Elements of a lane that are read at once."""
    lanes: int
    warps: int
    chunk: int = 0
    """Columns of a part of a row; 0 for all of them. Nothing else is tried in its place."""


STATISTICS = Plan(4, 1024, 4)
"""By search on an H100 on 2026-11-27 (``softmax_plans.json``), for 4096 to 262144 columns."""
WRITTEN = Plan(4, 8192, 32)
"""Of rows that are not held: likewise, for 128256 columns and more."""

TILE_LIMITS = {"depth": (1, 8), "lanes": (256, 8192), "warps": (1, 32), "chunk": (1024, 65536)}
"""Of such plans, where another GPU's is searched."""


class HeldPlan(NamedTuple):
    """How rows that are held are shared out."""

    programs: int
    lanes: int
    """As those of `Plan`: with ``depth`` rows of them a tile is a row."""
    warps: int
    stages: int
    """Of the loop over rows: all but one are on their way, through shared memory."""


HELD_PLANS = {
    4096: HeldPlan(264, 1024, 4, 4),
    8192: HeldPlan(264, 2048, 4, 4),
    16384: HeldPlan(132, 4096, 8, 4),
    32768: HeldPlan(132, 8192, 32, 3),
}
"""Of rows of 16 bits, by the columns of their tile: by search on an H200 on 2026-11-28
(``softmax_held_plans.txt``), of those within 1 % of the fastest the one with fewest warps."""

HELD = max(HELD_PLANS)
"""Columns up to which a row is held in registers while its softmax is written. Longer ones are read
twice."""

LOOSE = HeldPlan(528, 2048, 8, 1)
"""Of rows that leave much of their tile empty, unless it is the largest: with rows on their way
12000 columns took 1.10 times as long (``conditions_softmaxes.md``), and 20000 columns 0.91."""

FILLED = 0.75
"""Of a tile, below which that is much. Of tiles that are partly filled only these two were
measured."""

LIMITS = {"programs": (16, 4096), "lanes": (256, 8192), "warps": (1, 32), "stages": (1, 4)}
"""Of such plans, where another GPU's is searched."""

_SHARED = 200_000
"""Bytes of shared memory, of a block's 227 KiB, that rows on their way may take. Two blocks of a
multiprocessor share them where tiles are small."""


def held_plan(columns: int, element_size: int) -> HeldPlan:
    """Return how to share rows out, of elements of so many bytes."""
    tile = tile_of(columns)
    if columns < FILLED * tile and tile < HELD:
        return LOOSE
    plan = HELD_PLANS[tile]
    return plan._replace(stages=min(plan.stages, 1 + _SHARED // (tile * element_size)))


def tile_of(columns: int) -> int:
    """Return the columns of a tile that a row fits into."""
    return min(x for x in HELD_PLANS if columns <= x)


# 1. The reference


def reference_statistics(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return maxima over the last dimension, which they keep, and sums of exponentials.

    Those are of differences to the maximum, times a scale. Both are float32 at least.
    """
    wide = widened(x)
    columns = x.shape[-1]
    if isinstance(columns, int) and not columns:  # amax would refuse rows of nothing
        return wide.new_full((*x.shape[:-1], 1), -math.inf), wide.new_zeros(*x.shape[:-1], 1)
    m = wide.amax(-1, keepdim=True)
    return m, ((wide - m) * scale).exp().sum(-1, keepdim=True)


def reference(x: Tensor, scale: float, dtype: torch.dtype, *, is_log: bool) -> Tensor:
    """Return the softmax of ``x`` times a scale over the last dimension, or its logarithm."""
    return _normalised(x, *reference_statistics(x, scale), scale, is_log=is_log).to(dtype)


def _normalised(x: Tensor, m: Tensor, s: Tensor, scale: float, *, is_log: bool) -> Tensor:
    less = (widened(x) - m) * scale
    return less - s.log() if is_log else less.exp() / s


def losses_of(
    x: Tensor, target: Tensor, m: Tensor, log_s: Tensor, scale: float, ignored: int
) -> Tensor:
    """Return the cross entropy of each row, by its maximum and its sum's logarithm; 0 if ignored.

    A target out of range is an index out of range: what runs this asserts on CUDA, as torch does.
    """
    kept = target != ignored
    at = torch.where(kept, target, 0)[:, None]
    picked = (widened(x.gather(-1, at)) - m) * scale
    return torch.where(kept, (log_s - picked)[:, 0], 0)


def gradient_of(
    dy: Tensor, x: Tensor, target: Tensor, m: Tensor, log_s: Tensor, scale: float, ignored: int
) -> Tensor:
    """Return the gradient of `losses_of` by ``x``.

    Inductor computes values of a row again for each of its elements. So the logarithm is given, and
    columns are compared in 32 bits.
    """
    probability = ((widened(x) - m) * scale - log_s).exp()
    columns = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
    is_target = columns == target.to(torch.int32)[:, None]
    given = torch.where(target != ignored, dy, 0)[:, None] * scale
    return ((probability - is_target.to(dy.dtype)) * given).to(x.dtype)


# 2. Launching


def launch_statistics(
    kernel: Any, x: Tensor, scale: float, is_log: bool = False, chosen: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """Run the kernel of statistics, without a dispatcher or a check; as `reference_statistics`.

    With ``is_log`` the second are the sums' logarithms: what a kernel wrote is kept for backward,
    and not computed there again. Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how
    it is launched, by default `STATISTICS`, of parts of `CHUNK` columns where there are few rows.
    """
    rows, columns = _rows(x), x.shape[-1]
    count = rows.shape[0]
    this = Launch(
        run=launch_statistics,
        kernels=[kernel],
        given=(x, scale, is_log),
        reference=_same_statistics,
        limits=TILE_LIMITS,
    )
    plan = STATISTICS._replace(chunk=CHUNK if count < FEW_ROWS else 0)
    how = chosen or plan_here(plan, this)
    parts = -(-columns // how.chunk) if how.chunk else 1
    m = x.new_empty((count, parts), dtype=torch.float32)
    s = torch.empty_like(m)
    constants = {"chunk": how.chunk or CHUNK, "is_aligned": _is_aligned(rows), **_constants(how)}
    constants["is_log"] = is_log and parts == 1
    with torch.cuda.device(x.get_device()):  # Triton launches on the current one
        kernel[(count, parts)](
            rows, m, s, columns, rows.stride(0), parts, scale * _BITS, **constants
        )
    if parts > 1:
        part_m, m = m, m.amax(-1, keepdim=True)
        s = (s * ((part_m - m) * scale).exp()).sum(-1, keepdim=True)
        s = s.log() if is_log else s
    shape = (*x.shape[:-1], 1)
    return m.view(shape), s.view(shape)


def _same_statistics(x: Tensor, scale: float, is_log: bool) -> tuple[Tensor, Tensor]:
    """Return what `launch_statistics` does, by the reference."""
    m, s = reference_statistics(x, scale)
    return m, s.log() if is_log else s


def launch(
    kernel: Any,
    x: Tensor,
    scale: float,
    dtype: torch.dtype,
    is_log: bool,
    chosen: Plan | None = None,
) -> Tensor:
    """Run the kernel that writes softmax of rows of any length, likewise; as `reference`.

    ``chosen`` is how it is launched, by default `WRITTEN`.
    """
    rows, columns = _rows(x), x.shape[-1]
    this = Launch(
        run=launch,
        kernels=[kernel],
        given=(x, scale, dtype, is_log),
        reference=_same_written,
        limits=TILE_LIMITS,
    )
    how = chosen or plan_here(WRITTEN, this)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    constants = {"is_aligned": _is_aligned(rows), **_constants(how)}
    with torch.cuda.device(x.get_device()):
        kernel[(rows.shape[0],)](
            *(rows, y, columns, rows.stride(0), scale * _BITS, scale), is_log=is_log, **constants
        )
    return y


def launch_held(
    kernel: Any,
    x: Tensor,
    scale: float,
    dtype: torch.dtype,
    is_log: bool,
    chosen: HeldPlan | None = None,
) -> Tensor:
    """Run the kernel that writes softmax of rows that fit into registers, likewise.

    ``chosen`` is how to share rows out, by default `held_plan`.
    """
    rows, columns = _rows(x), x.shape[-1]
    this = Launch(
        run=launch_held,
        kernels=[kernel],
        given=(x, scale, dtype, is_log),
        reference=_same_written,
        limits=LIMITS,
    )
    how = chosen or plan_here(held_plan(columns, x.element_size()), this)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    with torch.cuda.device(x.get_device()):
        kernel[(how.programs,)](
            *(rows, y, rows.shape[0], columns, rows.stride(0), scale * _BITS, scale),
            is_log=is_log,
            is_aligned=_is_aligned(rows),
            depth=max(1, tile_of(columns) // how.lanes),
            lanes=how.lanes,
            stages=how.stages,
            num_warps=how.warps,
        )
    return y


def _same_written(x: Tensor, scale: float, dtype: torch.dtype, is_log: bool) -> Tensor:
    """Return what `launch` and `launch_held` do, by the reference."""
    return reference(x, scale, dtype, is_log=is_log)


def _constants(plan: Plan) -> dict[str, int]:
    return {"depth": plan.depth, "lanes": plan.lanes, "num_warps": plan.warps}


def _rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix of its rows, whose elements lie side by side."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])  # noqa: PLR2004 (it is one)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _is_aligned(rows: Tensor) -> bool:
    sizes = (rows.shape[1], rows.stride(0))
    return all(isinstance(n, int) and n % _EIGHTS == 0 for n in sizes)


# 3. When


def refusal(x: Tensor) -> str | None:
    """Return why the kernels can't take ``x``, or None. Then the reference runs."""
    if reason := unfit(x):
        return reason
    if not x.numel():
        return "it is empty"
    if x.shape[-1] > MOST_COLUMNS:
        return f"{x.shape[-1]} columns: the kernels take {MOST_COLUMNS}"
    return None


def pays(x: Tensor, *, is_written: bool) -> str | None:
    """Return why the operators should not take the place of what Inductor makes, or None."""
    if reason := refusal(x):
        return reason
    columns = x.shape[-1]
    if x.dtype == torch.float32:
        return "it was measured in 16 bits"
    if columns < FEWEST_COLUMNS:
        return f"{columns} columns: below {FEWEST_COLUMNS} Inductor is as fast"
    # Of symbols what they are now: to compare them would guard on the answer.
    sizes = (n if isinstance(n, int) else n.node.hint for n in x.shape)
    if math.prod(sizes) < FEWEST_ELEMENTS:
        return f"it has fewer than {FEWEST_ELEMENTS} elements: that was not measured"
    if is_written and any(n % _EIGHTS for n in (columns, *x.stride()[-2:-1])):
        return "its rows begin anywhere: to write them was not measured"
    return unmeasured(x)


# 4. Registration

softmax: Callable[..., Tensor]
"""The operator ``backbay::softmax``: :func:`reference`. It has no gradient.

Where ``is_written`` is false, what reads the result is computed with it: only statistics are the
kernel's.
"""

cross_entropy: Callable[..., tuple[Tensor, Tensor, Tensor]]
"""The operator ``backbay::cross_entropy``: losses of rows, maxima, and logarithms of sums."""

cross_entropy_backward: Callable[..., Tensor]
"""The operator ``backbay::cross_entropy_backward``: :func:`gradient_of`."""

_NAMES = ("softmax", "cross_entropy", "cross_entropy_backward")


@functools.cache
def _operators() -> tuple[Any, Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import softmax_device as device  # noqa: PLC0415

        statistics_kernel: Any = device.softmax_statistics_kernel
        held_kernel: Any = device.softmax_held_kernel
        kernel: Any = device.softmax_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def statistics(x: Tensor, scale: float, *, is_log: bool = False) -> tuple[Tensor, Tensor]:
        if refusal(x):
            return _same_statistics(x, scale, is_log)
        return launch_statistics(wrap_triton(statistics_kernel), x, scale, is_log=is_log)

    def forward(
        x: Tensor, scale: float, dtype: torch.dtype, is_log: bool, is_written: bool
    ) -> Tensor:
        if refusal(x) is None and is_written and x[..., 0].numel() >= FEW_ROWS:
            if x.shape[-1] <= HELD:
                return launch_held(wrap_triton(held_kernel), x, scale, dtype, is_log)
            return launch(wrap_triton(kernel), x, scale, dtype, is_log=is_log)
        return _normalised(x, *statistics(x, scale), scale, is_log=is_log).to(dtype)

    def losses(
        x: Tensor, target: Tensor, scale: float, ignored: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        m, log_s = statistics(x, scale, is_log=True)
        return losses_of(x, target, m, log_s, scale, ignored), m, log_s

    def backward(
        dy: Tensor, x: Tensor, target: Tensor, m: Tensor, log_s: Tensor, scale: float, ignored: int
    ) -> Tensor:
        return gradient_of(dy, x, target, m, log_s, scale, ignored)

    made = (
        define("backbay::softmax", forward, mutates_args=()),
        define("backbay::cross_entropy", losses, mutates_args=()),
        # Not traced by autograd: the second derivative would lack what maxima and sums depend on.
        define("backbay::cross_entropy_backward", backward, mutates_args=()),
    )
    made[1].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, target, *ctx.how = inputs
    ctx.save_for_backward(x, target, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _vjp(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    return _operators()[2](dy, *ctx.saved_tensors, *ctx.how), None, None, None
