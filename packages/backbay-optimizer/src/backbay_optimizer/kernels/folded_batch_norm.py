"""Convolutions' weights and biases that compute the batch norms behind them, too.

In inference a batch norm multiplies each channel by a number and adds another, which a convolution
can do by itself: a standard of deployment, e.g. ``torch.nn.utils.fusion.fuse_conv_bn_weights``.
Both are computed in single precision and rounded once.

A network has dozens, each of them small: many are one operator, so that a graph gets few nodes, and
it falls apart into PyTorch's operators on lists of tensors, which Inductor compiles for CUDA to two
kernels. Two for each batch norm would cost the host more than is won.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

_ATEN = torch.ops.aten
_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "folded_batch_norms(Tensor[] weights, Tensor[]? biases, Tensor[] means, Tensor[] variances, "
    "Tensor[]? scales, Tensor[]? shifts, float eps, ScalarType dtype) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)

Tensors = Sequence[Tensor]


def _folded(
    weights: Tensors, biases: Tensors | None, means: Tensors, variances: Tensors, *given: Any
) -> list[Tensor]:
    scales, shifts, eps, dtype = given
    factors = _ATEN._foreach_rsqrt.default(_ATEN._foreach_add.Scalar(_floats(variances), eps))
    if scales is not None:
        factors = _ATEN._foreach_mul.List(factors, _floats(scales))
    columns = [x.view(-1, 1, 1, 1) for x in factors]
    products = _ATEN._foreach_mul.List(_floats(weights), columns)
    offsets = _ATEN._foreach_neg.default(_floats(means))
    if biases is not None:
        offsets = _ATEN._foreach_add.List(offsets, _floats(biases))
    offsets = _ATEN._foreach_mul.List(offsets, factors)
    if shifts is not None:
        offsets = _ATEN._foreach_add.List(offsets, _floats(shifts))
    # Rounded by a copy: a cast of each would be a kernel of its own.
    made = _ATEN._foreach_copy.default([weight_like(x, dtype) for x in weights], products)
    made += _ATEN._foreach_copy.default([bias_like(x, dtype) for x in means], offsets)
    return list(made)


def _floats(tensors: Tensors) -> list[Tensor]:
    return [x.float() for x in tensors]


def weight_like(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for a folded weight: it has its channels last."""
    return torch.empty_like(weight, dtype=dtype, memory_format=torch.channels_last)


def bias_like(mean: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for a folded bias."""
    return torch.empty_like(mean, dtype=dtype, memory_format=torch.contiguous_format)


_library.impl("folded_batch_norms", _folded, "CompositeImplicitAutograd")

OPERATOR = torch.ops.backbay.folded_batch_norms.default
"""Of weights (out, in, height, width), and of biases, means, variances, scales, shifts (out,): the
folded weights, with channels last, and behind them the folded biases. For inference: PyTorch has no
gradient of some of what it is made of, and says so."""
