"""Fake values of operators, computed once for all calls of a graph that are alike.

Networks repeat their blocks, and a pass puts the same operator into each. Its fake value is that of
a reference of many steps, which takes milliseconds. Torch's own cache of fake values has its own
operators alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

_TORCHS = frozenset({"aten", "prims"})
_PLAIN = (
    *(bool, int, float, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""What arguments may be beside tensors: compared by type and value."""


class _Metadata(NamedTuple):
    """What decides which result an operator gives for a fake tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, x: Any, mode: FakeTensorMode) -> "_Metadata | None":
        """Return a tensor's; None if there is more to it, such as a symbol for a size."""
        # What vmap or grad computes with is no FakeTensor, but one is within.
        if type(x) is not FakeTensor or x.fake_mode is not mode:
            return None
        if x.constant is not None or x.real_tensor is not None:
            return None
        if x.layout != torch.strided or x._has_symbolic_sizes_strides:  # noqa: SLF001 (no other)
            return None
        if x.is_inference() or x._is_zerotensor():  # noqa: SLF001 (no other)
            return None
        bits = x.is_conj(), x.is_neg()
        return cls(tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad, *bits)

    @property
    def size(self) -> int:
        """Bytes from the first element to the last."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.stride, strict=True)
        return (1 + sum((n - 1) * step for n, step in steps)) * self.dtype.itemsize

    def empty(self) -> torch.Tensor:
        """Return a fake tensor like this, with memory of its own."""
        how: Any = {"dtype": self.dtype, "device": self.device}
        x = torch.empty_strided(self.shape, self.stride, **how)
        if not self.requires_grad:
            return x
        # Not a leaf, which nothing could write to in place.
        return x.copy_(torch.empty((), **how, requires_grad=True))


_known: WeakKeyDictionary[FakeTensorMode, dict[Any, Any]] = WeakKeyDictionary()
"""By what traces a graph: calls, in a state of torch's, to their results' metadata."""


def is_cached(target: Any) -> bool:
    """Return whether results of a function are kept: of operators that are not torch's."""
    if not isinstance(target, OpOverload) or target.namespace in _TORCHS:
        return False
    return not target._schema.is_mutable  # noqa: SLF001 (no other)


def call_cached(
    target: OpOverload[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    mode: FakeTensorMode,
) -> Any:
    """Call an operator with fake values, or return what a call alike gave, in other memory.

    Args:
        target: the operator; see `is_cached`.
        arguments: its own.
        keywords: likewise.
        mode: of the fake values; it is on.
    """
    key = _key(target, arguments, keywords, mode)
    if key is None:
        return target(*arguments, **keywords)
    known = _known.setdefault(mode, {})
    if key in known:
        return pytree.tree_map_only(_Metadata, _Metadata.empty, known[key], is_leaf=_is_metadata)
    value = target(*arguments, **keywords)
    metadata = _metadata(value, (arguments, keywords), mode)
    if metadata is not None:
        known[key] = metadata
    return value


def _is_metadata(x: Any) -> bool:
    return isinstance(x, _Metadata)  # else its fields are looked into


def _key(
    target: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], mode: FakeTensorMode
) -> tuple[Any, ...] | None:
    leaves, structure = pytree.tree_flatten((arguments, keywords))
    given = [(type(x), x) if isinstance(x, _PLAIN) else _Metadata.of(x, mode) for x in leaves]
    if None in given or torch.autograd.forward_ad._current_level >= 0:  # noqa: SLF001 (no other)
        return None
    devices = {x.device.type for x in given if isinstance(x, _Metadata)}
    return target, structure, *given, *_state(devices)


def _state(devices: set[str]) -> tuple[Any, ...]:
    casts = sorted(x for x in devices if torch.amp.is_autocast_available(x))
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *((x, torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in casts),
    )


def _metadata(value: Any, given: Any, mode: FakeTensorMode) -> Any:
    """Return a value with metadata in place of tensors; None where it has more to it than these."""
    leaves, structure = pytree.tree_flatten(value)
    memory = {_memory(x) for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)}
    found = list[Any]()
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            if not isinstance(x, _PLAIN):
                return None
            found.append(x)
            continue
        one = _Metadata.of(x, mode)
        if one is None or one.is_conjugate or one.is_negative:
            return None
        if one.requires_grad and x.is_leaf:
            return None
        # Views are no copies of what they view.
        held = x.untyped_storage().nbytes()
        if _memory(x) in memory or not isinstance(held, int) or held != one.size:
            return None
        memory.add(_memory(x))
        found.append(one)
    return pytree.tree_unflatten(found, structure)


def _memory(x: torch.Tensor) -> Any:
    return x.untyped_storage()._cdata  # noqa: SLF001 (its identity)
