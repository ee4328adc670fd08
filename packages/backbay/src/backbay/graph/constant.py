"""Values of a graph's nodes that depend on nothing that is given to it, computed when asked for."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from backbay.graph import checkpoints
from backbay.graph.aliases import Memory
from backbay.graph.effects import is_pure, is_uninitialised
from backbay.graph.values import call, value_of


class NotConstantError(Exception):
    """A node's value is not known before the graph runs; the message says why, on one line."""


def constant_value(graph_module: GraphModule, node: Node, *, most_bytes: int) -> Any:
    """Compute a node from the constants that it depends on, on the devices that the graph names.

    Args:
        graph_module: the whole graph; it is left as it is.
        node: what to compute, of the graph or of what one of its checkpoints runs.
        most_bytes: of one tensor on the way; a larger one is not made.

    Raises:
        NotConstantError: it depends on an input, a parameter, a symbolic size, a random draw, or on
            what something else writes to; or it is too large.
    """
    values: dict[Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for one in constant_graph(graph_module, node, most_bytes=most_bytes).nodes:
            arguments, keywords = torch.fx.map_arg((one.args, one.kwargs), values.__getitem__)
            values[one] = arguments[0] if one.op == "output" else call(one, arguments, keywords)
    return values[one]


def constant_graph(graph_module: GraphModule, node: Node, *, most_bytes: int) -> Graph:
    """Copy a node and all that it depends on into a graph of its own, without inputs.

    Args:
        graph_module: as for `constant_value`.
        node: likewise; it becomes the result.
        most_bytes: likewise.

    Raises:
        NotConstantError: as `constant_value` does.
    """
    graph, outside = graph_module.graph, checkpoints.arguments(graph_module)
    needed = _needed(node, outside, Memory(graph), most_bytes)
    made, copies = Graph(), dict[Node, Any]()
    for one in (x for x in checkpoints.as_run(graph) if x in needed):
        before = how_made(one) if one.op == "placeholder" else None
        if one in outside:
            copies[one] = copies[outside[one]]
        elif before is not None:
            copies[one] = made.graph_copy(before, {})
        else:
            copies[one] = made.node_copy(one, copies.__getitem__)
            copies[one].meta.clear()  # fake values, which would keep the other graph's alive
    made.output(copies[node])
    return made


def _needed(node: Node, outside: Mapping[Node, Node], memory: Memory, most_bytes: int) -> set[Node]:
    """Return a node and all that it depends on."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        if one in outside:
            waiting.append(outside[one])
            continue
        _check(one, memory, most_bytes)
        waiting += one.all_input_nodes
    return found


def _check(node: Node, memory: Memory, most_bytes: int) -> None:
    if node.op == "placeholder" and how_made(node) is None:
        raise NotConstantError(f"it depends on the input {node.name}")
    if node.op not in {"call_function", "call_method", "placeholder"}:
        raise NotConstantError(f"it depends on {node.target}, which the model owns")
    if memory.mutated(node):
        raise NotConstantError(f"{node.name} is written to after it was made")
    if node.op == "placeholder":
        return
    if is_uninitialised(node) or not is_pure(node):
        raise NotConstantError(f"{node.name} is random, or does more than compute")
    tensors = [x for x in pytree.tree_leaves(value_of(node)) if isinstance(x, torch.Tensor)]
    sizes = [y for x in tensors for y in x.shape]
    given = [value_of(x) for x in pytree.tree_leaves((node.args, node.kwargs))]
    if any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in (*sizes, *given)):
        raise NotConstantError(f"the size of {node.name} is a symbol")
    if any(x.nbytes > most_bytes for x in tensors):
        raise NotConstantError(f"{node.name} has more than {most_bytes >> 20} MiB")


# Constants that one graph hands to the next, where a model's graph is cut apart.
#
# DistributedDataParallel has Dynamo's graph cut into one for each bucket of gradients, and each
# compiled by itself, in the order in which they run. What the first one makes is an input of the
# others, with the same fake value: so it is known again. How it is made is kept as long as that.

_MADE: MutableMapping[Tensor, Graph] = WeakTensorKeyDictionary()
"""A fake value, to a graph without inputs that gives the real one; it holds no fake values."""


def hand_over(value: Tensor, made: Graph) -> None:
    """Note how a value is made that another graph may get."""
    _MADE[value] = made


def how_made(node: object) -> Graph | None:
    """Return how a graph's input was made by another graph, if that is known and still true."""
    value = value_of(node)
    return _MADE.get(value) if isinstance(value, Tensor) else None


def forget_written(graph: Graph) -> None:
    """Forget what a graph writes to: those after it get something else."""
    memory = Memory(graph) if _MADE else None
    for value in list(_MADE):
        if memory is not None and memory.mutated(value):
            del _MADE[value]
