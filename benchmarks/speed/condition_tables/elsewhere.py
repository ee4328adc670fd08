"""What a search of plans finds where nothing is known, beside the plans that are committed.

On the GPU that those are from: a search that begins far from them should come near, and one that
begins at them can't do worse.
"""

import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from backbay_optimizer.kernels import batch_norm as norms
from backbay_optimizer.kernels import batch_norm_device as norms_device
from backbay_optimizer.kernels import depthwise_convolution as depthwise
from backbay_optimizer.kernels import depthwise_convolution_device as depthwise_device
from backbay_optimizer.kernels import embedding as embeddings
from backbay_optimizer.kernels import embedding_device as embeddings_device
from backbay_optimizer.kernels import few_row_linears as few
from backbay_optimizer.kernels import few_row_linears_device as few_device
from backbay_optimizer.kernels import float8_rows as rounded
from backbay_optimizer.kernels import float8_rows_device as rounded_device
from backbay_optimizer.kernels import group_norm_silu as groups
from backbay_optimizer.kernels import group_norm_silu_device as groups_device
from backbay_optimizer.kernels import linear_epilogue as epilogue
from backbay_optimizer.kernels import linear_epilogue_device as epilogue_device
from backbay_optimizer.kernels import max_pool as pools
from backbay_optimizer.kernels import max_pool_device as pools_device
from backbay_optimizer.kernels import rotated_heads as heads
from backbay_optimizer.kernels import rotated_heads_device as heads_device
from backbay_optimizer.kernels import row_norm as rows
from backbay_optimizer.kernels import row_norm_device as rows_device
from backbay_optimizer.kernels import softmax as softmaxes
from backbay_optimizer.kernels import softmax_device as softmaxes_device
from backbay_optimizer.kernels.elsewhere import Launch
from backbay_optimizer.tuning import plan_search
from speed.condition_tables.timing import in_turns, normal, row

_EPS = 1e-5


def elsewhere() -> Iterator[str]:
    """Compare launches with the committed plan, and with plans of searches from two ends."""
    ways = ("committed plan", "searched from it", "searched from afar")
    yield row("launch", *(f"{x}, us" for x in ways), "ratios", "plans", "seconds to search")
    yield f"|{'---|' * 7}"
    for name, module, call in launches(normal):
        plan, launch = asked(module, call)
        plans, seconds = [plan], []
        for first in (plan, _far_from(plan, launch)):
            start = time.perf_counter()
            plans.append(plan_search.searched(first, launch))
            seconds.append(f"{time.perf_counter() - start:.0f}")
        runs = [functools.partial(_run, launch, how) for how in plans]
        times = in_turns(runs)
        ratios = " ".join(f"{x / times[0]:.2f}" for x in times[1:])
        cells = [f"{x:.1f}" for x in times]
        yield row(name, *cells, ratios, " ".join(map(shown, plans)), " ".join(seconds))


def _run(launch: Launch, how: Any) -> Any:
    return launch.run(*launch.kernels, *launch.given, how)


def _far_from(plan: Any, launch: Launch) -> Any:
    """Return a plan of which each field is a quarter, or four times as much where it is small."""
    far = {}
    for field, (least, most) in launch.limits.items():
        n = getattr(plan, field)
        far[field] = n // 4 if n // 4 >= least else min(4 * n, most)
    return plan._replace(**far)


def shown(plan: NamedTuple) -> str:
    """Return a plan as a cell has it."""
    return f"({', '.join(map(str, plan))})"


class _Asked(Exception):  # noqa: N818 (it ends a launch that is not wanted)
    """A plan was asked for."""


def asked(module: ModuleType, call: Callable[[], Any]) -> tuple[Any, Launch]:
    """Return the plan of a launch, and what is launched, without launching it."""

    def noted(plan: Any, launch: Launch) -> Any:
        raise _Asked(plan, launch)

    with mock.patch.object(module, "plan_here", noted):
        try:
            call()
        except _Asked as found:
            plan, launch = found.args
            return plan, launch
    raise ValueError("it has no plan")


_Draw = Callable[..., Tensor]
_Launches = Iterator[tuple[str, ModuleType, Callable[[], Any]]]


def launches(draw: _Draw) -> _Launches:
    """Yield launches that have a plan: what they are of, the kernel's module, and the call.

    Args:
        draw: returns a tensor of 16 bits, of a shape.
    """
    yield from _of_images(draw)
    yield from _of_products(draw)
    yield from _of_norms(draw)
    yield from _of_softmaxes(draw)
    yield from _of_what_is_moved(draw)


def _of_images(draw: _Draw) -> _Launches:
    x, w = _last(draw(128, 384, 28, 28)), draw(384, 1, 7, 7)
    how = ([1, 1], [3, 3])
    kernel: Any = depthwise_device.depthwise_kernel
    run: Any = functools.partial(depthwise.launch, kernel, x, w, None, *how)
    yield "depthwise 7x7, 128 x 384 x 28 x 28", depthwise, run
    run = functools.partial(
        depthwise.launch_weight, depthwise_device.depthwise_weight_kernel, x, x, w, *how
    )
    yield "the same, gradient by filters", depthwise, run
    x = _last(draw(128, 256, 56, 56))
    run = functools.partial(norms.launch_statistics, norms_device.batch_norm_statistics_kernel, x)
    yield "batch norm's statistics, 128 x 256 x 56 x 56", norms, run
    vectors = [draw(256).float().abs() + 0.5 for _ in range(4)]
    kernel = norms_device.batch_norm_sums_kernel
    mean, rstd, weight, bias = vectors
    run = functools.partial(norms.launch_sums, kernel, x, x, mean, rstd, weight, bias, "relu")
    yield "the same, its gradient's sums", norms, run


def _of_products(draw: _Draw) -> _Launches:
    for n in (16, 128, 512):
        x, weights = draw(n, 4096), [draw(4096, 4096), draw(1024, 4096)]
        run: Any = functools.partial(
            few.launch, few_device.linears_kernel, x, weights, [None, None]
        )
        yield f"layers of {n} rows, 4096 to 4096 and 1024", few, run
    x, gate, up = draw(16, 4096), draw(11008, 4096), draw(11008, 4096)
    run = functools.partial(few.launch_gated, few_device.gated_kernel, x, gate, up, None, None)
    yield "gated layers of 16 rows, 4096 to 11008", few, run
    for columns, inner in ((1536, 384), (3072, 768)):
        x, weight, bias = draw(50176, inner), draw(columns, inner), draw(columns)
        run = functools.partial(
            epilogue.launch, epilogue_device.linear_kernel, x, weight, bias, "gelu"
        )
        yield f"linear and GELU, 50176 rows, {inner} to {columns}", epilogue, run


def _of_norms(draw: _Draw) -> _Launches:
    kernels = (groups_device.group_norm_window_kernel, groups_device.group_norm_panel_kernel)
    for images, channels, side in ((8, 512, 64), (1, 128, 512)):
        for name in ("first", "last"):
            x, weight = draw(images, channels, side, side), draw(channels)
            x = _last(x) if name == "last" else x
            run: Any = functools.partial(groups.launch, kernels, x, weight, weight, 32, _EPS, True)  # noqa: FBT003 (of the operator)
            yield f"group norm, {images} x {channels} x {side} x {side}, {name}", groups, run
    pair = (rows_device.row_norm_backward_kernel, rows_device.row_norm_totals_kernel)
    for columns in (1024, 4096):
        x, rstd = draw(16384, columns), draw(16384, 1).float().abs()
        run = functools.partial(rows.launch_backward, pair, [x], x, draw(columns), None, rstd, 0.0)
        yield f"RMSNorm's gradient, 16384 x {columns}", rows, run


def _of_softmaxes(draw: _Draw) -> _Launches:
    for columns in (8192, 32768):
        x = draw(2**28 // columns, columns)
        kernel = softmaxes_device.softmax_held_kernel
        run: Any = functools.partial(softmaxes.launch_held, kernel, x, 1.0, x.dtype, False)  # noqa: FBT003 (likewise)
        yield f"softmax, {x.shape[0]} x {columns}", softmaxes, run
    x = draw(2**28 // 131072, 131072)
    run = functools.partial(
        softmaxes.launch, softmaxes_device.softmax_kernel, x, 1.0, x.dtype, is_log=False
    )
    yield "softmax, 2048 x 131072", softmaxes, run
    kernel = softmaxes_device.softmax_statistics_kernel
    for n in (256, 2048):
        run = functools.partial(softmaxes.launch_statistics, kernel, x[:n], 1.0)
        yield f"softmax's statistics, {n} x 131072", softmaxes, run


def _of_what_is_moved(draw: _Draw) -> _Launches:
    dy = draw(8192, 1024)
    index = dy.new_zeros(8192, dtype=torch.int64)
    adding = (
        *(embeddings_device.embedding_count_kernel, embeddings_device.embedding_place_kernel),
        *(embeddings_device.embedding_order_kernel, embeddings_device.embedding_add_kernel),
    )
    run: Any = functools.partial(embeddings.launch, adding, [dy], [index], [65536], [-1])
    yield "embedding's gradient, 65536 x 1024, 8192 tokens", embeddings, run
    x = _last(draw(128, 64, 112, 112))
    window = ([3, 3], [2, 2], [1, 1])
    run = functools.partial(pools.launch, pools_device.max_pool_kernel, x, *window)
    yield "maxima over 3 by 3, 128 x 64 x 112 x 112", pools, run
    dy = _last(draw(128, 64, 56, 56))
    given = (pools_device.max_pool_backward_kernel, dy, dy.to(torch.int8), 112, 112, *window)
    run = functools.partial(pools.launch_backward, *given)
    yield "the same, gradient", pools, run
    x, by = draw(8192, 4096), draw(4096)
    recipe = rounded.Recipe("rms_norm", _EPS)
    kernel: Any = rounded_device.float8_rows_kernel
    run = functools.partial(rounded.launch, kernel, x, by, None, recipe)
    yield "RMSNorm in float8, 8192 x 4096", rounded, run
    both, weights = [draw(1, 8192, n, 128) for n in (32, 8)], [draw(128), draw(128)]
    angles = draw(1, 8192, 128), draw(1, 8192, 128)
    kernel = heads_device.rotated_heads_kernel
    run = functools.partial(heads.launch, kernel, both, weights, *angles, heads.How())
    yield "heads that are turned, 8192 tokens, 32 and 8 of 128", heads, run


def _last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)
