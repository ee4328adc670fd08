"""A part of a graph, taken out as a graph of its own; and what it is told apart by."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from backbay.graph.report import target_name
from backbay.graph.values import value_of


def between(end: Node, sources: Collection[Node]) -> list[Node]:
    """Return a node and the calls that it is made of, as far as some sources, without them."""
    found, waiting = {end}, [end]
    while waiting:
        known = found.union(sources)
        inputs = [x for x in waiting.pop().all_input_nodes if x.op.startswith("call")]
        further = [x for x in inputs if x not in known]
        found.update(further)
        waiting += further
    return sorted(found)


def inputs_of(nodes: Collection[Node]) -> list[Node]:
    """Return what some nodes read that is not among them, in the order in which it is read."""
    read = dict.fromkeys(x for node in sorted(nodes) for x in node.all_input_nodes)
    return [x for x in read if x not in nodes]


def taken_out(nodes: Iterable[Node], results: Sequence[Node] = ()) -> GraphModule:
    """Return a graph of some nodes of another, which takes what `inputs_of` says.

    Args:
        nodes: calls.
        results: those of them that it gives. Default: what others read.
    """
    inside = dict.fromkeys(sorted(nodes))
    graph, copies = Graph(), dict[Node, Node]()
    for given in inputs_of(inside):
        copies[given] = graph.placeholder(given.name)
        copies[given].meta = dict(given.meta)
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = results or [x for x in inside if any(user not in inside for user in x.users)]
    graph.output(tuple(copies[x] for x in results))
    return GraphModule(torch.nn.Module(), graph)


def digest(graph: Graph) -> str:
    """Return a text that two graphs share where they compute the same on inputs of the same kind.

    The kind of an input is dtype, device, sizes and strides. What nodes are called does not count.
    """
    number = {node: f"%{n}" for n, node in enumerate(graph.nodes)}
    rows = [
        (
            x.op,
            described(value_of(x)) if x.op == "placeholder" else target_name(x),
            map_arg((x.args, x.kwargs), number.__getitem__),
        )
        for x in graph.nodes
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def captured_digest(graph_module: GraphModule) -> str:
    """Return a text that two captured graphs share where the same decisions hold for them.

    That is `digest`, of the graphs of branches and loops too, and whether gradients are recorded.
    """
    graphs = [digest(x.graph) for x in graph_module.modules() if isinstance(x, GraphModule)]
    whole = repr((graphs, torch.is_grad_enabled()))
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def described(value: Any) -> Any:
    """Return what a compiled graph depends on of an input."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    # A symbol is timed at the size that it was first seen with, so that counts too.
    sizes = [
        str(x) if isinstance(x, int) else f"{x}={x.node.hint}"
        for x in (*value.shape, *value.stride())
    ]
    return str(value.dtype), str(value.device), value.requires_grad, sizes
