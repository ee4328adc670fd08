"""Take maxima over windows, and their gradient, in kernels of ours, with channels last, on CUDA.

::

    before:  F.max_pool2d(x, 3, 2, 1)
    after:   torch.ops.backbay.max_pool(x, [3, 3], [2, 2], [1, 1])[0]

Inductor's gradient computes the index of each maximum in the image anew, with 64-bit divisions, for
every pixel that asks. Only for training, and for the windows of ``WINDOWS``.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import conditions, images
from backbay_optimizer.kernels import max_pool as kernel

_IMAGE = 4
WINDOWS = ((3, 2, 1), (3, 2, 0), (3, 1, 1), (2, 2, 0))
"""Sizes, strides and paddings, each alike down and right: ResNet's, AlexNet's, Inception's, VGG's.
Others were not measured (``conditions.py max_pools``)."""
SLOWER_IN_FLOAT32 = ((2, 2, 0),)
"""Of these, what takes 1.06 of Inductor's time in float32: its windows share no pixel."""


@dataclass(frozen=True, kw_only=True)
class MaxPools(Rewrite[Call]):
    """Take maxima over windows, and their gradient, in Triton where channels are last."""

    summary = "on CUDA, max pooling of training with channels last is a kernel each way"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
        dtypes_because="others were not measured",
    )
    targets = (F.max_pool2d, torch.max_pool2d)
    parameters = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    sources = (kernel, conditions.device_code(kernel), conditions, images)

    def replacement(self, site: Call, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        given = site.given
        x, result = value_of(given["input"]), value_of(site.node)
        if not result.requires_grad:
            raise NotApplicable("no gradient is wanted")
        if not is_ordinary(x) or x.dim() != _IMAGE or not are_numbers(x.shape):
            raise NotApplicable("it is no batch of images, or its size is a symbol")
        size = _pair(given["kernel_size"])
        stride = _pair(given["stride"]) if given.get("stride") else size
        window = [size, stride, _pair(given.get("padding", 0))]
        if not _is_one_of(window, WINDOWS):
            raise NotApplicable("it was not measured with such a window")
        if x.dtype == torch.float32 and _is_one_of(window, SLOWER_IN_FLOAT32):
            raise NotApplicable("in float32 it was slower with such a window")
        if _pair(given.get("dilation", 1)) != [1, 1]:
            raise NotApplicable("its window has gaps")
        if given.get("return_indices"):
            raise NotApplicable("it returns indices")
        rests = [(n + 2 * p - k) % s for n, k, s, p in zip(x.shape[2:], *window, strict=True)]
        if given.get("ceil_mode") and any(rests):
            raise NotApplicable("it rounds sizes up")
        if not x.is_contiguous(memory_format=torch.channels_last):
            raise NotApplicable("its channels are not last")
        if reason := kernel.pays(x):
            raise NotApplicable(reason)
        assert callable(kernel.max_pool)  # registers it: torch.ops has it only after that
        call = call_before(site.node, torch.ops.backbay.max_pool.default, given["input"], *window)
        return call_before(site.node, operator.getitem, call, 0)


max_pools = MaxPools()


def _is_one_of(window: list[Any], windows: Sequence[tuple[int, int, int]]) -> bool:
    return window in [[[n, n] for n in x] for x in windows]


def _pair(given: Any) -> list[Any]:
    return [*given] if isinstance(given, tuple | list) else [given, given]
