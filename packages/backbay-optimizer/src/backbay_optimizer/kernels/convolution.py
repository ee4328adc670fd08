"""Convolution as an operator of its own, computed by the one that eager calls.

Inductor sees through ``aten.convolution`` and chooses memory layouts for it; this one it takes as
it is, with inputs and result laid out as they were when the graph was traced.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

_NAME = "backbay::convolution"
# Not custom_op, whose wrapper takes twice as long to call.
_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, SymInt groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
OPERATOR = torch.ops.backbay.convolution.default
"""``conv2d`` of x (N, C, H, W) and weight (K, C / groups, R, S), laid out as eager's result is."""


def _computed(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    stride, padding, dilation, groups = how
    given = (x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    result: Tensor = torch.ops.aten.convolution.default(*given)
    return result


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    x, weight, bias, *ctx.how = inputs
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, weight)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    stride, padding, dilation, groups = ctx.how
    wanted = [*ctx.needs_input_grad[:2], ctx.bias_sizes is not None and ctx.needs_input_grad[2]]
    how = (stride, padding, dilation, False, [0, 0], groups, wanted)
    given = (dy, *ctx.saved_tensors, ctx.bias_sizes, *how)
    return (*torch.ops.aten.convolution_backward.default(*given), *(None,) * len(ctx.how))


_library.impl("convolution", _computed, "CompositeExplicitAutograd")
register_fake(_NAME, _computed, lib=_library)
register_autograd(_NAME, _vjp, setup_context=_save, lib=_library)
