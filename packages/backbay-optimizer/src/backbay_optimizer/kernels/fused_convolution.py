"""Convolution, a sum and ReLU in one call of cuDNN, which writes the result once.

cuDNN has no engine for some convolutions, and says so only when it is asked: such a one is computed
in three steps from then on. So is what asks for deterministic algorithms, of which the fused call
knows nothing. Anything else that goes wrong is raised.

A network calls it dozens of times for each image, and the host must not be what a GPU waits for: so
it has no gradient, whose bookkeeping is in Python, and refuses one that is wanted.

Beside it is convolution by itself, as an operator: Inductor sees through ``aten.convolution`` and
chooses memory layouts for it; this one it takes as it is, with inputs and result laid out as they
were when the graph was traced.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

_ATEN = torch.ops.aten
_NAME = "backbay::convolution_relu"
# Not custom_op, whose wrapper takes twice as long to call.
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


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    """Compute the convolution alone, whose layout the operator's result has."""
    stride, padding, dilation, groups = how
    given = (x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    result: Tensor = _ATEN.convolution.default(*given)
    return result


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    """Compute it in three steps, each rounded to the dtype.

    Raises:
        RuntimeError: ``other`` has another shape or dtype than the convolution's result.
    """
    result = _checked(convolved(x, weight, bias, *how), other)
    return (result if other is None else result.add_(other)).relu_()


def _in_steps(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    _refuse_gradient(x, weight, bias, other)
    return reference(x, weight, bias, other, *how)


def _by_cudnn(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    _refuse_gradient(x, weight, bias, other)
    if not _is_taken(x) or (REFUSED and _key(x, weight, other, how) in REFUSED):
        return reference(x, weight, bias, other, *how)
    try:
        if other is None:
            fused: Tensor = _ATEN.cudnn_convolution_relu.default(x, weight, bias, *how)
            return fused
        fused = _ATEN.cudnn_convolution_add_relu.default(x, weight, other, 1.0, bias, *how)
    except RuntimeError as error:
        if not any(said in str(error) for said in _NO_ENGINE):
            raise
        REFUSED.add(_key(x, weight, other, how))
        return reference(x, weight, bias, other, *how)
    return fused


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, *how: Any
) -> Tensor:
    """Return the fake result: as the convolution's, whatever is done to that in place."""
    return _checked(convolved(x, weight, bias, *how), other)


def _checked(result: Tensor, other: Tensor | None) -> Tensor:
    if other is not None and (other.shape, other.dtype) != (result.shape, result.dtype):
        raise RuntimeError(
            f"other is {other.dtype} of shape {[*other.shape]}, the convolution's result "
            f"{result.dtype} of {[*result.shape]}: {_NAME} adds what is alike"
        )
    return result


def _refuse_gradient(*given: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        raise NotImplementedError(
            f"{_NAME} has no gradient, it is for inference: call it under torch.no_grad(), or "
            "conv2d and relu in its place"
        )


def _is_taken(x: Tensor) -> bool:
    exact = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return bool(torch.backends.cudnn.enabled) and not exact and x.numel() > 0


def _key(x: Tensor, weight: Tensor, other: Tensor | None, how: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_kind(x), _kind(weight), other is None, *map(tuple, how[:3]), how[3])


def _kind(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.dtype


_library.impl("convolution_relu", _in_steps, "CompositeExplicitAutograd")
if torch.version.hip is None:
    _library.impl("convolution_relu", _by_cudnn, "CUDA")
register_fake(_NAME, _fake, lib=_library)


# Convolution by itself

_PLAIN_NAME = "backbay::convolution"
_library.define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, SymInt groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
PLAIN = torch.ops.backbay.convolution.default
"""``conv2d`` of x (N, C, H, W) and weight (K, C / groups, R, S), laid out as eager's result is."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    x, weight, bias, *ctx.how = inputs
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, weight)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    stride, padding, dilation, groups = ctx.how
    wanted = [*ctx.needs_input_grad[:2], ctx.bias_sizes is not None and ctx.needs_input_grad[2]]
    how = (stride, padding, dilation, False, [0, 0], groups, wanted)
    given = (dy, *ctx.saved_tensors, ctx.bias_sizes, *how)
    return (*_ATEN.convolution_backward.default(*given), *(None,) * len(ctx.how))


_library.impl("convolution", convolved, "CompositeExplicitAutograd")
register_fake(_PLAIN_NAME, convolved, lib=_library)
register_autograd(_PLAIN_NAME, _vjp, setup_context=_save, lib=_library)
