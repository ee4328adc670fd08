"""Nested inputs and outputs, as a flat list of named leaves."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Leaves that are compared for equality."""


def leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    """Return every leaf with its name, such as ``output[0].logits``.

    Dataclasses that are not registered with torch's pytree are opened too.
    """
    found: list[tuple[str, Any]] = []
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        here = name + "".join(_key(key) for key in path)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                found += leaves(getattr(leaf, field.name), f"{here}.{field.name}")
        else:
            found.append((here, leaf))
    return found


def structure(value: Any) -> str:
    """Return how a value is nested, in a form that is equal where the nesting is."""
    return str(pytree.tree_structure(value))


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every leaf."""
    return pytree.tree_map(function, value)


def plain(leaf: Any) -> Any:
    """Return a leaf that is no tensor as something that can be compared and stored."""
    if isinstance(leaf, PLAIN):
        return leaf
    if isinstance(leaf, torch.dtype | torch.device | torch.Size):
        return str(leaf)
    return f"an object of type {type(leaf).__qualname__}"


def is_opaque(leaf: Any) -> bool:
    """Return whether a leaf's content is out of sight: neither tensor nor plain value."""
    known = (torch.Tensor, torch.dtype, torch.device, torch.Size, *PLAIN)
    return not isinstance(leaf, known)


def _key(key: Any) -> str:
    if isinstance(key, pytree.SequenceKey):
        return f"[{key.idx}]"
    name = key.key if isinstance(key, pytree.MappingKey) else getattr(key, "name", key)
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"
