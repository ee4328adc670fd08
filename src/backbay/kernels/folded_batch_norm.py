"""A convolution's weight and bias that compute the batch norm behind it, too.

In inference a batch norm multiplies each channel by a number and adds another, which a convolution
can do by itself: a standard of deployment, e.g. ``torch.nn.utils.fusion.fuse_conv_bn_weights``.
Both are computed in single precision and rounded once. They are operators, and not a dozen of
PyTorch's, so that a graph of many convolutions gets fewer nodes to evaluate; whoever traces
them sees PyTorch's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "folded_weight(Tensor weight, Tensor variance, Tensor? scale, float eps, ScalarType dtype) "
    "-> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "folded_bias(Tensor? bias, Tensor mean, Tensor variance, Tensor? scale, Tensor? shift, "
    "float eps, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _factor(variance: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    factor = torch.rsqrt(variance.float() + eps)
    return factor if scale is None else factor * scale.float()


def _weight(
    weight: Tensor, variance: Tensor, scale: Tensor | None, eps: float, dtype: torch.dtype
) -> Tensor:
    folded = weight.float() * _factor(variance, scale, eps).view(-1, 1, 1, 1)
    return folded.to(dtype).contiguous(memory_format=torch.channels_last)


def _bias(bias: Tensor | None, mean: Tensor, variance: Tensor, *given: Any) -> Tensor:
    scale, shift, eps, dtype = given
    folded: Tensor = -mean.float() if bias is None else bias.float() - mean.float()
    folded = folded * _factor(variance, scale, eps)
    return (folded if shift is None else folded + shift.float()).to(dtype)


_library.impl("folded_weight", _weight, "CompositeImplicitAutograd")
_library.impl("folded_bias", _bias, "CompositeImplicitAutograd")

WEIGHT = torch.ops.backbay.folded_weight.default
"""Of (out, in, height, width), times the norm's factor of each output, with channels last."""
BIAS = torch.ops.backbay.folded_bias.default
"""Of (out,), or None: what the norm makes of it."""
