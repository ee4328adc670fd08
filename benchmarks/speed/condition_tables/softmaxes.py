"""Softmax of rows that fit into registers: Inductor's, beside ``softmaxes``' kernel."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from backbay_optimizer.kernels import softmax as kernel
from backbay_optimizer.kernels import softmax_device as device
from speed.condition_tables.timing import Call, at_least, compared, in_turns, inductors, normal, row

COLUMNS = (4096, 8192, 12000, 16384, 20000, 32000, 32768)
ELEMENTS = 2**28


def softmaxes() -> Iterator[str]:
    """Compare softmax of rows, of 16 bits."""
    names = ("Inductor's", "kernel, one row at a time", "the next rows on their way")
    yield row("rows, columns", "limit", *names, "ratios", "")
    yield f"|{'---|' * 7}"
    for columns in COLUMNS:
        x = normal(ELEMENTS // columns, columns)
        plan = kernel.HELD_PLANS[kernel.tile_of(columns)]
        calls: list[Call] = [*inductors([functools.partial(torch.softmax, x, -1)])]
        calls += [functools.partial(_ours, x, p) for p in (_alone(plan), plan)]
        limit = at_least(2 * x.numel() * x.element_size())
        yield row(f"{x.shape[0]}, {columns}", limit, *compared(in_turns(calls)))


def _alone(plan: kernel.HeldPlan) -> kernel.HeldPlan:
    """Return a plan with as many threads of a multiprocessor and no row on its way."""
    warps = min(plan.warps, 16)
    return kernel.HeldPlan(132 * 32 // warps, min(plan.lanes, warps * 256), warps, 1)


def _ours(x: Tensor, plan: kernel.HeldPlan) -> Tensor:
    return kernel.launch_held(device.softmax_held_kernel, x, 1.0, x.dtype, False, plan)  # noqa: FBT003 (a search gives it so)
