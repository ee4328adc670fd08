"""Calls of ``scaled_dot_product_attention`` in a graph, and what they are given, by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory
from backbay.graph.layouts import Layouts, kind
from backbay.graph.values import adopt, propagate, state_at, value_of
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
