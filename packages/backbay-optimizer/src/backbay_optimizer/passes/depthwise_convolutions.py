"""Compute depthwise convolutions with channels last in kernels of ours, on CUDA.

::

    before:  torch.conv2d(x, weight, bias, 1, 3, 1, channels)    # of (channels, 1, 7, 7)
    after:   torch.ops.backbay.depthwise_convolution(x, weight, bias, [1, 1], [3, 3])

Nothing else changes: Inductor does not fuse what cuDNN computes either. In training all gradients
are the kernels', too, and filters of 3 by 3 and 5 by 5 are taken there. Left alone are channels
first, and what was not measured.
"""

from dataclasses import dataclass

import torch
from torch.fx import Node

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import conditions, images
from backbay_optimizer.kernels import depthwise_convolution as kernel
from backbay_optimizer.passes import convolutions
from backbay_optimizer.passes.convolutions import Convolution


@dataclass(frozen=True, kw_only=True)
class DepthwiseConvolutions(Rewrite[Convolution]):
    """Compute depthwise convolutions and their gradients in Triton where channels are last."""

    summary = "on CUDA, depthwise convolutions with channels last are one kernel, gradients too"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16,),
        dtypes_because="it was measured in bfloat16",
    )
    targets = convolutions.IMAGES
    sources = (kernel, conditions.device_code(kernel), conditions, convolutions, images)

    def site(self, call: Call, context: PassContext) -> Convolution | None:  # noqa: ARG002 (of those that ask)
        """Return the convolution if each channel has a filter of its own."""
        found = Convolution.of(call.node)
        x, weight = value_of(found.x), value_of(found.weight)
        if found.groups == 1 or not are_numbers((*x.shape, *weight.shape)):
            return None
        return found if tuple(weight.shape[:2]) == (found.groups, 1) else None

    def replacement(self, site: Convolution, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        x, weight, result = map(value_of, (site.x, site.weight, site.node))
        if {x.dtype, weight.dtype} != {result.dtype}:
            raise NotApplicable(f"it takes {x.dtype} and {weight.dtype}, and gives {result.dtype}")
        if site.dilation != [1, 1]:
            raise NotApplicable(f"its dilation is {site.dilation}")
        measured = kernel.TRAINED if result.requires_grad else kernel.INFERRED
        if reason := kernel.pays(x, weight, site.stride, site.padding, measured):
            raise NotApplicable(reason)
        for value in (x, result):
            if not value.is_contiguous(memory_format=torch.channels_last):
                raise NotApplicable(
                    "its channels are not last: Inductor chooses a layout by itself"
                )
        assert callable(kernel.depthwise_convolution)  # registers it: torch.ops has it only then
        given = (site.x, site.weight, site.bias, site.stride, site.padding)
        return call_before(site.node, torch.ops.backbay.depthwise_convolution.default, *given)


depthwise_convolutions = DepthwiseConvolutions()
