"""Call convolutions with more weights than activations as eager does, on a CPU.

::

    before:  torch.conv2d(x, weight)                  # of (2, 512, 2, 2) and (512, 512, 3, 3)
    after:   torch.ops.backbay.convolution(x, weight)

Inductor lays out every convolution of a CPU with its channels last, and copies the weights, which
models keep channels first, in every call. That pays where a few weights meet many pixels. Where the
weights are more than all the pixels, the copy takes as long as the convolution, and oneDNN is
slower with it, too. Such a convolution gets its inputs as they are. What is round it stays
Inductor's, which turns activations from one layout to the other where they meet: those are few.

Only for inference in float32, where all sizes are known. Weights of 1 by 1 need no copy.
"""

from dataclasses import dataclass

import torch
from torch.fx import Node

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import fused_convolution as kernel
from backbay_optimizer.passes import convolutions
from backbay_optimizer.passes.convolutions import Convolution

PAYS_FROM = 2**17
"""Weights from which their copy takes longer than the operator's own call, of 30 microseconds."""


@dataclass(frozen=True, kw_only=True)
class EagerConvolutions(Rewrite[Convolution]):
    """Call convolutions whose weights outweigh their activations as eager does; for CPUs."""

    summary = "on a CPU, convolutions of more weights than activations are as eager's"
    requires = Requires(
        devices=("cpu",),
        because="Inductor chooses layouts by use there",
        dtypes=(torch.float32,),
        dtypes_because="it pays in float32",
        inference=True,
    )
    targets = convolutions.IMAGES
    sources = (kernel, convolutions)

    def site(self, call: Call, context: PassContext) -> Convolution:  # noqa: ARG002 (of those that ask)
        """Return the convolution."""
        return Convolution.of(call.node)

    def replacement(self, site: Convolution, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        x, weight, result = map(value_of, (site.x, site.weight, site.node))
        if {x.dtype, weight.dtype} != {torch.float32}:
            raise NotApplicable(f"it takes {x.dtype}, and gives {result.dtype}: it pays in float32")
        if not are_numbers((*x.shape, *weight.shape, *result.shape)):
            raise NotApplicable("its size is a symbol: whether it pays is not known")
        if not x.is_contiguous() or not weight.is_contiguous():
            raise NotApplicable("its input or weight has not its channels first")
        if weight.is_contiguous(memory_format=torch.channels_last):
            raise NotApplicable("its weight has its channels last at the same time")
        if weight.numel() < max(PAYS_FROM, x.numel() + result.numel()):
            raise NotApplicable(
                f"{weight.numel()} weights, {x.numel() + result.numel()} activations: the copy "
                "that Inductor makes of the weights pays"
            )
        given = (site.x, site.weight, site.bias, *site.how)
        return call_before(site.node, kernel.PLAIN, *given)


eager_convolutions = EagerConvolutions()
