"""Compute convolutions of what was pooled to one pixel as linear layers, on CUDA.

::

    before:  torch.conv2d(x, weight, bias)                  x: (N, C, 1, 1), weight: (O, C, 1, 1)
    after:   F.linear(x.flatten(1), weight.flatten(1), bias).view(N, O, 1, 1)

Squeeze-and-excitation has two of them in each block: of 81 convolutions of an EfficientNet-B0, 32.
cuDNN's kernels for them are made for images. As a product, forward is one kernel of cuBLAS, and
each gradient is another. Only for training, as it was timed.
"""

from dataclasses import dataclass

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.passes import convolutions
from backbay_optimizer.passes.convolutions import Convolution

_PIXEL = (1, 1)


@dataclass(frozen=True, kw_only=True)
class PooledConvolutions(Rewrite[Convolution]):
    """Call convolutions of one pixel as linear layers where gradients are wanted."""

    summary = "on CUDA, training's convolutions of one pixel (squeeze-and-excitation) are linear"
    requires = Requires(
        devices=("cuda",),
        because="it is about cuDNN's kernels",
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it is about kernels of 16 bits",
    )
    targets = convolutions.IMAGES
    sources = (convolutions,)

    def site(self, call: Call, context: PassContext) -> Convolution | None:  # noqa: ARG002 (of those that ask)
        """Return the convolution if its images and its kernel have one pixel."""
        found = Convolution.of(call.node)
        sizes = (value_of(x).shape[2:] for x in (found.x, found.weight))
        return found if all(tuple(x) == _PIXEL for x in sizes) else None

    def replacement(self, site: Convolution, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return the result of a linear layer, as an image."""
        result = value_of(site.node)
        if not result.requires_grad:
            raise NotApplicable("no gradient is wanted")
        if site.groups != 1 or any(site.padding):
            raise NotApplicable("it has groups or padding")
        if not are_numbers((*result.shape, *value_of(site.x).shape)):
            raise NotApplicable("its size is a symbol")
        rows, weight = (call_before(site.node, "flatten", x, 1) for x in (site.x, site.weight))
        made = call_before(site.node, F.linear, rows, weight, site.bias)
        images, channels = result.shape[:2]
        if result.stride()[2:] == _PIXEL:
            return call_before(site.node, "view", made, images, channels, 1, 1)
        pixels = call_before(site.node, "view", made, images, 1, 1, channels)
        return call_before(site.node, "permute", pixels, 0, 3, 1, 2)


pooled_convolutions = PooledConvolutions()
