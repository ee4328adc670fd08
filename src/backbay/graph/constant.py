"""Values of a graph's nodes that depend on nothing that is given to it, computed when asked for."""

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from backbay.graph.aliases import Memory
from backbay.graph.effects import is_pure, is_uninitialised
from backbay.graph.values import value_of


class NotConstantError(Exception):
    """A node's value is not known before the graph runs; the message says why, on one line."""


def constant_value(graph_module: GraphModule, node: Node, *, most_bytes: int) -> Any:
    """Compute a node from the constants that it depends on, on the devices that the graph names.

    Args:
        graph_module: the graph; it is left as it is.
        node: what to compute.
        most_bytes: of one tensor on the way; a larger one is not made.

    Raises:
        NotConstantError: it depends on an input, a parameter, a symbolic size, a random draw, or on
            what something else writes to; or it is too large.
    """
    needed = _needed(node, Memory(graph_module.graph), most_bytes)
    values: dict[Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for one in needed:
            arguments, keywords = torch.fx.map_arg((one.args, one.kwargs), values.__getitem__)
            values[one] = _called(one, arguments, keywords)
    return values[node]


def _needed(node: Node, memory: Memory, most_bytes: int) -> list[Node]:
    """Give a node and all that it depends on, in the order in which they are computed."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one not in found:
            _check(one, memory, most_bytes)
            found.add(one)
            waiting += one.all_input_nodes
    return [x for x in node.graph.nodes if x in found]


def _check(node: Node, memory: Memory, most_bytes: int) -> None:
    if node.op == "placeholder":
        raise NotConstantError(f"it depends on the input {node.name}")
    if node.op not in {"call_function", "call_method"}:
        raise NotConstantError(f"it depends on {node.target}, which the model owns")
    if memory.mutated(node):
        raise NotConstantError(f"{node.name} is written to after it was made")
    if is_uninitialised(node) or not is_pure(node):
        raise NotConstantError(f"{node.name} is random, or does more than compute")
    tensors = [x for x in pytree.tree_leaves(value_of(node)) if isinstance(x, torch.Tensor)]
    sizes = [y for x in tensors for y in x.shape]
    if any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in (*sizes, *_plain(node))):
        raise NotConstantError(f"the size of {node.name} is a symbol")
    if any(x.nbytes > most_bytes for x in tensors):
        raise NotConstantError(f"{node.name} has more than {most_bytes >> 20} MiB")


def _plain(node: Node) -> list[Any]:
    return [value_of(x) for x in pytree.tree_leaves((node.args, node.kwargs))]


def _called(node: Node, arguments: Any, keywords: Any) -> Any:
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **keywords)
    return node.target(*arguments, **keywords)  # type: ignore[operator] # of a call_function
