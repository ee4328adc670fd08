"""The suite's own operators: what the levels go through where torch's data base cannot be read.

Few, plain and public. They are no second data base: they keep the levels from being empty when a
version of torch moves its private one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

from backbay_conformance.levels.opinfo import Operator, Sample

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32)
_EVERY = (*_FLOATS, *_INTEGERS)
_BATCH, _WIDE, _NARROW = 5, 8, 3
_ONE = ((_BATCH, _WIDE),)
_TWO = ((_BATCH, _WIDE), (_BATCH, _WIDE))


@dataclass(frozen=True, kw_only=True)
class Info:
    """As much of torch's OpInfo as is used here."""

    op: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[torch.dtype, ...] = _FLOATS
    further: tuple[Any, ...] = ()
    """Arguments after the tensors."""
    lowest: float = -2.0
    supports_autograd: bool = True
    supports_gradgrad: bool = True
    inplace_variant: Callable[..., Any] | None = None
    method_variant: None = None
    error_inputs_func: None = None

    def supported_dtypes(self, device: str) -> tuple[torch.dtype, ...]:  # noqa: ARG002 (everywhere)
        """Return the dtypes that it takes."""
        return self.types

    def supported_backward_dtypes(self, device: str) -> tuple[torch.dtype, ...]:  # noqa: ARG002
        """Return the dtypes in which it has a gradient."""
        return tuple(x for x in self.types if x.is_floating_point)

    @staticmethod
    def sample_inputs_func(
        info: "Info", device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator["Made"]:
        """Make its one sample."""
        tensors = [
            torch.testing.make_tensor(
                shape,
                device=device,
                dtype=dtype,
                low=info.lowest,
                high=2.0,
                requires_grad=requires_grad and dtype.is_floating_point,
            )
            for shape in info.shapes
        ]
        yield Made(input=tensors[0], args=(*tensors[1:], *info.further))


@dataclass(frozen=True, kw_only=True)
class Made:
    """As much of torch's SampleInput as is used here."""

    input: torch.Tensor
    args: tuple[Any, ...]
    broadcasts_input: bool = False

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return its keyword arguments: none."""
        return {}

    @property
    def output_process_fn_grad(self) -> Callable[[Any], Any]:
        """Return what brings its result into a form that is unique: nothing has to."""
        return _identity

    def noncontiguous(self) -> "Made":
        """Return it with every tensor laid out with gaps."""
        args = tuple(_with_gaps(x) if isinstance(x, torch.Tensor) else x for x in self.args)
        return Made(input=_with_gaps(self.input), args=args)


def _identity(value: Any) -> Any:
    return value


_identity.__qualname__ = "SampleInput.__init__.identity"  # as torch's own is told apart


def _with_gaps(value: torch.Tensor) -> torch.Tensor:
    wide = torch.full((*value.shape, 2), float("nan") if value.is_floating_point() else 0)
    wide = wide.to(value)
    wide[..., 1] = value.detach()
    return wide[..., 1].requires_grad_(value.requires_grad)


def _elementwise() -> Iterator[Operator]:
    for name in ("abs", "neg", "sign", "square"):
        yield _named(name, shapes=_ONE, types=_EVERY, inplace_variant=_in_place(name))
    for name in ("cos", "erf", "exp", "sigmoid", "sin", "tanh", "floor", "round"):
        yield _named(name, shapes=_ONE, inplace_variant=_in_place(name))
    for name in ("log", "rsqrt", "sqrt"):
        yield _named(name, shapes=_ONE, lowest=0.1, inplace_variant=_in_place(name))
    for name in ("add", "maximum", "minimum", "mul", "sub"):
        yield _named(name, shapes=_TWO, types=_EVERY)
    yield _named("div", shapes=_TWO, lowest=0.5)
    for name in ("eq", "gt", "le"):
        yield _named(name, shapes=_TWO, types=_EVERY, supports_autograd=False)


def _moving_and_reducing() -> Iterator[Operator]:
    for name in ("amax", "amin", "logsumexp", "mean", "prod", "std", "sum", "var"):
        yield _named(name, shapes=_ONE, further=(-1,))
    for name in ("argmax", "argmin"):
        yield _named(name, shapes=_ONE, further=(-1,), types=_EVERY, supports_autograd=False)
    for name in ("cumsum", "softmax", "log_softmax", "sort"):
        yield _named(name, shapes=_ONE, further=(-1,))
    for name in ("squeeze", "unsqueeze", "unbind"):
        yield _named(name, shapes=_ONE, further=(0,), types=_EVERY)
    yield _named("flip", shapes=_ONE, further=((0,),), types=_EVERY)
    yield _named("transpose", shapes=_ONE, further=(0, 1), types=_EVERY)


def _of_networks() -> Iterator[Operator]:
    yield _named("matmul", shapes=((_BATCH, _WIDE), (_WIDE, _NARROW)))
    yield _named("bmm", shapes=((2, _BATCH, _WIDE), (2, _WIDE, _NARROW)))
    for function in (F.relu, F.gelu, F.silu, F.softplus):
        yield _of(f"nn.functional.{function.__name__}", function, shapes=_ONE)
    linear = ((_BATCH, _WIDE), (_NARROW, _WIDE), (_NARROW,))
    yield _of("nn.functional.linear", F.linear, shapes=linear)
    yield _of("nn.functional.layer_norm", F.layer_norm, shapes=_ONE, further=((_WIDE,),))
    yield _of("nn.functional.conv2d", F.conv2d, shapes=((2, 3, 6, 6), (4, 3, 3, 3), (4,)))


def _named(name: str, **info: Any) -> Operator:
    return _of(name, getattr(torch, name), **info)


def _of(name: str, op: Callable[..., Any], **info: Any) -> Operator:
    return Operator(name=name, info=Info(op=op, **info))


def _in_place(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.Tensor, f"{name}_")
    return found


OPERATORS: tuple[Operator, ...] = (*_elementwise(), *_moving_and_reducing(), *_of_networks())
__all__ = ["OPERATORS", "Info", "Made", "Sample"]
