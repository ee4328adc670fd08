"""Convolution, a sum and ReLU in one call of cuDNN, which writes the result once.

cuDNN has no engine for some convolutions, and says so only when it is asked: such a one is computed
in three steps from then on. So is what asks for deterministic algorithms, of which the fused call
knows nothing. Anything else that goes wrong is raised.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

_ATEN = torch.ops.aten
_NAME = "backbay::convolution_relu"
_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "convolution_relu(Tensor x, Tensor weight, Tensor? bias, Tensor? other, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
OPERATOR = torch.ops.backbay.convolution_relu.default
"""``relu(conv2d(x, weight, bias) + other)``, laid out as the convolution's result is. ``other`` has
its shape and dtype."""

REFUSED = set[Any]()
"""Convolutions for which cuDNN has no fused engine: shapes, layouts, dtype, and how."""

_NO_ENGINE = ("unable to find an engine", "NOT_SUPPORTED", "No valid engine")


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    """Compute it in three steps, each rounded to the dtype."""
    stride, padding, dilation, groups = how
    given = (x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    result: Tensor = _ATEN.convolution.default(*given)
    return (result if other is None else result.add_(other)).relu_()


def _by_cudnn(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    stride, padding, dilation, groups = how
    key = (_kind(x), _kind(weight), other is None, *map(tuple, how[:3]), groups)
    if not _is_taken(x) or key in REFUSED:
        return reference(x, weight, bias, other, *how)
    order = (stride, padding, dilation, groups)
    try:
        if other is None:
            fused: Tensor = _ATEN.cudnn_convolution_relu.default(x, weight, bias, *order)
            return fused
        fused = _ATEN.cudnn_convolution_add_relu.default(x, weight, other, 1.0, bias, *order)
    except RuntimeError as error:
        if not any(said in str(error) for said in _NO_ENGINE):
            raise
        REFUSED.add(key)
        return reference(x, weight, bias, other, *how)
    return fused


def _is_taken(x: Tensor) -> bool:
    exact = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return bool(torch.backends.cudnn.enabled) and not exact and x.numel() > 0


def _kind(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.dtype


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, *ctx.how = inputs
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, weight, output)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.how
    dy = _ATEN.threshold_backward.default(dy, output, 0)
    wanted = [*ctx.needs_input_grad[:2], ctx.bias_sizes is not None and ctx.needs_input_grad[2]]
    how = (stride, padding, dilation, False, [0, 0], groups, wanted)
    given = (dy, x, weight, ctx.bias_sizes, *how)
    gradients = _ATEN.convolution_backward.default(*given)
    return (*gradients, dy if ctx.needs_input_grad[3] else None, *(None,) * len(ctx.how))


_library.impl("convolution_relu", reference, "CompositeExplicitAutograd")
if torch.version.hip is None:
    _library.impl("convolution_relu", _by_cudnn, "CUDA")
register_fake(_NAME, reference, lib=_library)
register_autograd(_NAME, _vjp, setup_context=_save, lib=_library)
