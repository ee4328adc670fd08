"""Take maxima over windows, and their gradient, in kernels of ours, with channels last, on CUDA.

::

    before:  F.max_pool2d(x, 3, 2, 1)
    after:   torch.ops.backbay.max_pool(x, [3, 3], [2, 2], [1, 1])[0]

Inductor's gradient computes the index of each maximum in the image anew, with 64-bit divisions, for
every pixel that asks. Only for training, and for windows of 3 by 3 with a stride of 2, as residual
networks begin with: others were not measured.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import max_pool as kernel

_IMAGE = 4
_MEASURED = ([3, 3], [2, 2], [1, 1])


@dataclass(frozen=True, kw_only=True)
class MaxPools(Rewrite[Call]):
    """Take maxima over windows, and their gradient, in Triton where channels are last."""

    summary = "on CUDA, 3x3 max pooling of training with channels last is a kernel each way"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = (F.max_pool2d, torch.max_pool2d)
    parameters = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    sources = (kernel, conditions.device_code(kernel), conditions)

    def replacement(self, site: Call, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        given = site.given
        x, result = value_of(given["input"]), value_of(site.node)
        if not result.requires_grad:
            raise NotApplicable("no gradient is wanted")
        if not is_ordinary(x) or x.dim() != _IMAGE or not are_numbers(x.shape):
            raise NotApplicable("it is no batch of images, or its size is a symbol")
        window = [_pair(given.get(y)) for y in ("kernel_size", "stride", "padding")]
        if tuple(window) != _MEASURED or _pair(given.get("dilation", 1)) != [1, 1]:
            raise NotApplicable("its window is not of 3 by 3 with a stride of 2 and a padding of 1")
        if given.get("ceil_mode") or given.get("return_indices"):
            raise NotApplicable("it rounds sizes up, or returns indices")
        if not x.is_contiguous(memory_format=torch.channels_last):
            raise NotApplicable("its channels are not last")
        if reason := kernel.pays(x):
            raise NotApplicable(reason)
        assert callable(kernel.max_pool)  # registers it: torch.ops has it only after that
        call = call_before(site.node, torch.ops.backbay.max_pool.default, given["input"], *window)
        return call_before(site.node, operator.getitem, call, 0)


max_pools = MaxPools()


def _pair(given: Any) -> list[Any]:
    return [*given] if isinstance(given, tuple | list) else [given, given]
