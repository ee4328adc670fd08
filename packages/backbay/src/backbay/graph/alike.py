"""Fake values of calls that are alike: one is computed, the others are laid out as that one is.

Networks repeat their blocks, and a pass puts the same call into each. Its fake value takes up to
10 ms: operators have references of many steps. Torch's cache of fake values has neither operators
that others registered nor those that fall apart into several.
"""

from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

_PLAIN = (
    *(bool, int, float, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""What arguments may be beside tensors: compared by type and value."""


class _Layout(NamedTuple):
    """All that tells one fake tensor from another, but for its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, x: Any) -> "_Layout | None":
        """Return a tensor's; None where it is not fake, has symbols for sizes, or more to it."""
        if type(x) is not FakeTensor or x.constant is not None or x.layout != torch.strided:
            return None
        if x._has_symbolic_sizes_strides or torch._C._functorch.is_functorch_wrapped_tensor(x):  # noqa: SLF001 (no other)
            return None
        gradient, bits = x.requires_grad, (x.is_conj(), x.is_neg())
        return cls(tuple(x.shape), x.stride(), x.dtype, x.device, gradient, *bits)

    @property
    def size(self) -> int:
        """Bytes from its first element to its last."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.stride, strict=True)
        return (1 + sum((n - 1) * step for n, step in steps)) * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        """Return a fake tensor that is laid out so, with memory of its own."""
        how: Any = {"dtype": self.dtype, "device": self.device}
        x = torch.empty_strided(self.shape, self.stride, **how)
        if not self.requires_grad:
            return x
        # Not a leaf, which nothing could write to in place.
        return x.copy_(torch.empty((), **how, requires_grad=True))


_known: WeakKeyDictionary[FakeTensorMode, dict[Any, Any]] = WeakKeyDictionary()
"""By what traces a graph: a call, in a state of torch's, to how its results are laid out."""


def called(
    target: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    mode: FakeTensorMode,
) -> Any:
    """Call a function with fake values, or return what a call alike would give.

    Args:
        target: the function. Only of operators and of torch's own functions in C++ is known that
            nothing but their arguments and torch's state decides.
        arguments: its own.
        keywords: likewise.
        mode: of the fake values; it is on.
    """
    key = _key(target, arguments, keywords)
    if key is None:
        return target(*arguments, **keywords)
    known = _known.setdefault(mode, {})
    found = known.get(key)
    if found is not None:
        return pytree.tree_map_only(_Layout, _Layout.made, found, is_leaf=_is_layout)
    value = target(*arguments, **keywords)
    layouts = _layouts(value, (arguments, keywords))
    if layouts is not None:
        known[key] = layouts
    return value


def _is_layout(x: Any) -> bool:
    return isinstance(x, _Layout)  # else its fields are looked into


def _key(
    target: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    if isinstance(target, OpOverload):
        if target._schema.is_mutable:  # noqa: SLF001 (no other)
            return None
    elif not isinstance(target, BuiltinFunctionType):
        return None
    leaves, structure = pytree.tree_flatten((arguments, keywords))
    given = [(type(x), x) if isinstance(x, _PLAIN) else _Layout.of(x) for x in leaves]
    if None in given:
        return None
    devices = {x.device.type for x in given if isinstance(x, _Layout)}
    return target, structure, *given, *_state(devices)


def _state(devices: set[str]) -> tuple[Any, ...]:
    casts = sorted(x for x in devices if torch.amp.is_autocast_available(x))
    enabled = [(torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in casts]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *casts, *enabled


def _layouts(value: Any, given: Any) -> Any:
    """Return a value with layouts in place of tensors; None where it has more to it than these."""
    leaves, structure = pytree.tree_flatten(value)
    taken = {_memory(x) for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)}
    found = list[Any]()
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            if not isinstance(x, _PLAIN):
                return None
            found.append(x)
            continue
        layout = _Layout.of(x)
        if layout is None or layout.is_conjugate or layout.is_negative:
            return None
        # Views are no copies of what they view.
        if _memory(x) in taken or x.untyped_storage().nbytes() != layout.size:
            return None
        taken.add(_memory(x))
        found.append(layout)
    return pytree.tree_unflatten(found, structure)


def _memory(x: torch.Tensor) -> Any:
    return x.untyped_storage()._cdata  # noqa: SLF001 (its identity)
