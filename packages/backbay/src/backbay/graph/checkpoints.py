"""Graphs inside a graph: what activation checkpointing runs, and runs again in backward.

Dynamo puts what ``torch.utils.checkpoint`` was given into a graph of its own::

    body = self.wrap_body_0
    result = torch.ops.higher_order.tag_activation_checkpoint(body, x, mask, use_reentrant=False)

Each argument is a placeholder there, and has the same fake value: one memory, seen from both sides.
A body that is otherwise is no body here; its node stays something that nobody knows.
"""

from collections.abc import Iterator

from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from backbay.graph.values import value_of


def with_bodies(graph_module: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph, and those that its checkpoints run, inner ones after outer ones."""
    yield graph_module
    for node in graph_module.graph.nodes:
        body = body_of(node)
        if body is not None:
            yield from with_bodies(body)


def as_run(graph: Graph) -> Iterator[Node]:
    """Yield a graph's nodes in the order in which they run, a body's instead of its checkpoint."""
    for node in graph.nodes:
        body = body_of(node)
        if body is None:
            yield node
        else:
            yield from as_run(body.graph)


def arguments(graph_module: GraphModule) -> dict[Node, Node]:
    """Return the argument outside for each placeholder of its checkpoints' bodies."""
    found: dict[Node, Node] = {}
    for node in (x for one in with_bodies(graph_module) for x in one.graph.nodes):
        body = body_of(node)
        if body is not None:
            pairs = zip(body.graph.find_nodes(op="placeholder"), node.args[1:], strict=True)
            found |= {inside: outside for inside, outside in pairs if isinstance(outside, Node)}
    return found


def body_of(node: Node) -> GraphModule | None:
    """Return what a node runs as a checkpoint; None of other nodes."""
    owner = node.graph.owning_module
    if not isinstance(node.target, HigherOrderOperator) or owner is None:
        return None
    if node.target.__name__ != "tag_activation_checkpoint":
        return None
    body = getattr(owner, str(getattr(node.args[0], "target", "")), None)
    if not isinstance(body, GraphModule):
        return None
    inside = body.graph.find_nodes(op="placeholder")
    same = [value_of(a) is value_of(b) for a, b in zip(inside, node.args[1:], strict=False)]
    return body if len(inside) == len(node.args) - 1 and all(same) else None
