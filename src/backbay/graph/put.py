"""Put single nodes into a graph, at either level, with the values that they would have."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from backbay.graph.values import carry, propagate, refresh, value_of

Target = Callable[..., Any]


def call_before(place: Node, target: Target, *arguments: Any, **keywords: Any) -> Node:
    """Insert a call before a node, with the metadata of that node and a value of its own."""
    graph: Graph = place.graph
    with graph.inserting_before(place):
        made = graph.call_function(target, arguments, keywords)
    propagate(made, place)
    return made


def put_before(place: Node, value: Any, target: Target, *arguments: Any) -> Node:
    """Insert a call before a node of Dynamo's graph, whose value is known already."""
    with place.graph.inserting_before(place):
        made = place.graph.call_function(target, arguments)
    carry(made, place)
    made.meta["example_value"] = value
    return made


def cast_before(place: Node, node: Node, dtype: torch.dtype) -> Node:
    """Insert a cast of a node before another one, where it has another dtype."""
    if value_of(node).dtype == dtype:
        return node
    return call_before(place, torch.ops.aten._to_copy.default, node, dtype=dtype)  # noqa: SLF001 (its name)


def erase_between(before: Node, place: Node) -> None:
    """Erase what was put between two nodes, and nobody uses."""
    while place.prev is not before:
        place.graph.erase_node(place.prev)


def layout(value: torch.Tensor) -> tuple[Any, ...]:
    """Give what two values must have in common for one to be laid out as the other."""
    # Sizes as text: comparing symbols would guard on the answer. Of strides those that symbols
    # have now: one that is made in two ways is written in two.
    strides = tuple(x if isinstance(x, int) else x.node.hint for x in value.stride())
    return str(tuple(value.shape)), strides, value.dtype, value.device


def exchange(old: Node, new: Node) -> None:
    """Use one node where another was used, and erase that other."""
    old.replace_all_uses_with(new)
    refresh(old, new)
    old.graph.erase_node(old)


def same_kind(one: Any, other: Any) -> bool:
    """Tell whether two nodes' values can stand for each other, to autograd and to views, too."""
    a, b = value_of(one), value_of(other)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return _kind(a) == _kind(b)


def _kind(value: torch.Tensor) -> tuple[Any, ...]:
    # Sizes as text: comparing symbols would guard on the answer.
    where = (str(tuple(value.shape)), str(value.stride()))
    return (value.dtype, value.device, value.layout, value.requires_grad, *where)


def hold(graph_module: GraphModule, value: torch.Tensor, prefix: str) -> str:
    """Register a constant with a graph; give the name of its attribute."""
    taken = {name for name, _ in graph_module.named_buffers(recurse=False)}
    name = next(x for n in range(len(taken) + 1) if (x := f"{prefix}{n}") not in taken)
    graph_module.register_buffer(name, value)
    sources = getattr(graph_module, "_param_name_to_source", None)
    if isinstance(sources, dict):
        sources[name] = _source(name)
    return name


def _source(name: str) -> Any:
    """Give where Dynamo would say that a buffer is from: AOTAutograd demands it of each."""
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415 (imports Dynamo)

    return ConstantSource(source_name=name)
