"""Calls of ``scaled_dot_product_attention`` in a graph, and what they are given, by name."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory
from backbay.graph.layouts import Layouts, kind
from backbay.graph.put import exchange
from backbay.graph.values import adopt, propagate, state_at, value_of

TARGETS = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,  # in what torch.export made
)

_SIGNATURE = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in {
            "query": inspect.Parameter.empty,
            "key": inspect.Parameter.empty,
            "value": inspect.Parameter.empty,
            "attn_mask": None,
            "dropout_p": 0.0,
            "is_causal": False,
            "scale": None,
            "enable_gqa": False,
        }.items()
    ]
)


def calls(graph_module: GraphModule) -> Iterator[Node]:
    """Give the calls of attention."""
    for target in TARGETS:
        yield from graph_module.graph.find_nodes(op="call_function", target=target)


def target_of(node: Node) -> Callable[..., Any]:
    """Give the function that a call calls."""
    return next(x for x in TARGETS if x is node.target)


def arguments(node: Node) -> dict[str, Any]:
    """Give what a call is given, by name; what it leaves out is left out."""
    return dict(_SIGNATURE.bind(*node.args, **node.kwargs).arguments)


def replaced(
    node: Node,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    layouts: Layouts,
) -> bool:
    """Call another function in place of attention, unless the caller would get another layout."""
    with node.graph.inserting_before(node):
        made = node.graph.create_node(node.op, target, arguments, keywords)
    arguments, keywords = torch.fx.map_arg((made.args, made.kwargs), value_of)
    with state_at(node):
        known = layouts.of(target, *arguments, **keywords)
    if known is not None and known == kind(value_of(node)):
        adopt(made, node)
    else:
        propagate(made, node)
        if value_of(made).stride() != value_of(node).stride() and Memory(node.graph).returned(node):
            node.graph.erase_node(made)
            return False
    exchange(node, made)
    return True
