"""Calls of ``scaled_dot_product_attention`` in a graph, and what they are given, by name.

Also how keys and values are recognised that are repeated, one head for a group of queries::

    k[:, :, None].expand(b, heads, n, t, d).reshape(b, heads * n, t, d)
    torch.repeat_interleave(k, n, dim=1)
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.backends.cuda import SDPAParams
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory, disturbed
from backbay.graph.layouts import Layouts, kind
from backbay.graph.match import is_call
from backbay.graph.region import between
from backbay.graph.values import adopt, is_ordinary, propagate, state_at, value_of
from backbay.kit.passes import NotApplicable

TARGETS = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,  # in what torch.export made
)

PARAMETERS = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
"""Of it, in order."""

_RANK = 4
_HALF = (torch.float16, torch.bfloat16)


def target_of(node: Node) -> Callable[..., Any]:
    """Return the function that a call calls."""
    return next(x for x in TARGETS if x is node.target)


def call_instead(
    node: Node,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    layouts: Layouts,
) -> Node:
    """Put a call of another function before a call of attention, in whose place it comes.

    Raises:
        NotApplicable: the caller would get another layout.
    """
    with node.graph.inserting_before(node):
        made = node.graph.create_node(node.op, target, arguments, keywords)
    arguments, keywords = torch.fx.map_arg((made.args, made.kwargs), value_of)
    with state_at(node):
        known = layouts.of(target, *arguments, **keywords)
    if known is not None and known == kind(value_of(node)):
        adopt(made, node)
        return made
    propagate(made, node)
    if value_of(made).stride() != value_of(node).stride() and Memory(node.graph).returned(node):
        raise NotApplicable("the caller gets its result, which would be laid out otherwise")
    return made


def asked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> Any:
    """Return attention as torch's ``can_use_..._attention`` want it described, without dropout."""
    make: Any = SDPAParams  # its stub knows other arguments
    grouped = bool(query.shape[1] != key.shape[1])
    return make(query, key, value, mask, 0.0, False, grouped)  # noqa: FBT003 (it takes no names)


def unrepeated(node: Node, given: Mapping[str, Any]) -> dict[str, Node] | None:
    """Return the key and value of an attention before they were repeated, if kernels take groups.

    Args:
        node: the call of attention.
        given: arguments of ``scaled_dot_product_attention`` by name.
    """
    query = value_of(given["query"])
    is_taken = query.device.type == "cpu" or query.dtype in _HALF  # CUDA's take no float32
    if given.get("attn_mask") is not None or not is_taken:
        return None
    return sources(node, given)


def sources(node: Node, given: Mapping[str, Any]) -> dict[str, Node] | None:
    """Return the key and value of an attention before they were repeated.

    None where they were not, or where either is written after that: what is repeated is a copy.

    Args:
        node: the call of attention.
        given: arguments of ``scaled_dot_product_attention`` by name.
    """
    if given.get("enable_gqa"):
        return None
    found = {x: _source(given[x]) for x in ("key", "value")}
    key, value = found["key"], found["value"]
    if key is None or value is None:
        return None
    heads = [str(value_of(given[x]).shape[1]) for x in ("query", "key", "value")]
    same = value_of(key).shape[1] == value_of(value).shape[1] and len({*heads}) == 1
    pairs = (given["key"], key), (given["value"], value)
    if not same or any(_is_disturbed(copy, source, node) for copy, source in pairs):
        return None
    if value_of(node).requires_grad:  # backward reads them, where it has read the copies
        memory = Memory(node.graph)
        if memory.mutated(key) or memory.mutated(value):
            return None
    return {"key": key, "value": value}


def _is_disturbed(copy: Node, source: Node, place: Node) -> bool:
    """Return whether what is copied can't be read at a place, from the first view of it on."""
    first = min(between(copy, [source]))
    return disturbed(first, place, [copy, source]) is not None


def _source(node: Any) -> Node | None:
    if not _is_read_by_position(node):
        return None
    if is_call(node, ("repeat_interleave", torch.repeat_interleave)):
        return _interleaved(node)
    if not is_call(node, ("reshape", torch.reshape)):
        return None
    wide = node.args[0]
    if not is_call(wide, ("expand",)):
        return None
    thin = wide.args[0]
    if not _is_read_by_position(thin) or not _adds_a_dimension(thin):
        return None
    source = thin.args[0]
    return source if isinstance(source, Node) and _fits(source, thin, wide, node) else None


def _is_read_by_position(node: Any) -> bool:
    return isinstance(node, Node) and bool(node.args) and is_ordinary(value_of(node))


def _adds_a_dimension(node: Node) -> bool:
    if is_call(node, ("unsqueeze", torch.unsqueeze)):
        return True
    if node.target is not operator.getitem or not isinstance(node.args[1], tuple):
        return False
    return all(x is None or x == slice(None) for x in node.args[1])


def _fits(source: Node, thin: Node, wide: Node, repeated: Node) -> bool:
    one, two, three, four = (value_of(x).shape for x in (source, thin, wide, repeated))
    if len(one) != _RANK or len(four) != _RANK or len(three) != _RANK + 1:
        return False
    batch, heads, length, width = one
    times = three[2]
    if two != (batch, heads, 1, length, width) or three != (batch, heads, times, length, width):
        return False
    return bool(four == (batch, heads * times, length, width))


def _interleaved(node: Node) -> Node | None:
    source, times = node.args[0], node.args[1] if len(node.args) > 1 else None
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else None)  # noqa: PLR2004
    if dim not in {1, 1 - _RANK} or not isinstance(source, Node) or not isinstance(times, int):
        return None
    return source if value_of(source).dim() == _RANK == value_of(node).dim() else None
