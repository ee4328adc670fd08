"""A graph with symbols, made again for the sizes of one call."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node, map_arg

from backbay.graph.values import call

_NUMBERS = (bool, int, float)
_STALE = ("example_value", "tensor_meta", "unbacked_bindings")
"""Metadata with sizes of its own: some importers believe it before ``val``."""


def specialised(graph_module: GraphModule, arguments: Sequence[Any]) -> GraphModule:
    """Return a functional graph for inputs of exactly these sizes: no value in it is a symbol.

    Inputs that are numbers are left out, and what is computed of numbers alone is a number.

    Args:
        graph_module: a functional graph; it is left as it is.
        arguments: its inputs: tensors, real or fake, and numbers.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    graph, made, values = Graph(), dict[Node, Any](), dict[Node, Any]()
    given = iter(arguments)
    with torch.no_grad():
        for node in graph_module.graph.nodes:
            if node.op == "output":
                graph.node_copy(node, lambda x: made[x]).meta = _without_sizes(node)
                continue
            value = _value(graph_module, node, values, given, mode)
            values[node] = value
            if isinstance(value, _NUMBERS):
                made[node] = value
                continue
            made[node] = graph.create_node(
                node.op,
                node.target,
                map_arg(node.args, made.__getitem__),
                map_arg(node.kwargs, made.__getitem__),
                node.name,
            )
            made[node].meta = {**_without_sizes(node), "val": value}
    return GraphModule(graph_module, graph)


def _without_sizes(node: Node) -> dict[str, Any]:
    return {name: x for name, x in node.meta.items() if name not in _STALE}


def _value(
    graph_module: GraphModule,
    node: Node,
    values: dict[Node, Any],
    given: Any,
    mode: FakeTensorMode,
) -> Any:
    if node.op == "placeholder":
        argument = next(given)
        return mode.from_tensor(argument) if isinstance(argument, torch.Tensor) else argument
    if node.op == "get_attr":
        held = getattr(graph_module, str(node.target))
        return mode.from_tensor(held) if isinstance(held, torch.Tensor) else held
    arguments, keywords = map_arg((node.args, node.kwargs), values.__getitem__)
    with mode:
        return call(node, arguments, keywords)
