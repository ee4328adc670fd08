"""Merge equal calls on equal arguments.

::

    before:  a = x.sigmoid(); b = x.sigmoid(); y = a * b
    after:   a = x.sigmoid(); y = a * a

Not merged: what draws random numbers, reads or gives memory that something writes (also through a
view), stands in another state (autocast, gradients), or is returned where its twin is returned,
too: the caller gets two tensors, and may change one. Nor, at Dynamo's level, what gradients flow
through: those of the two would be summed before the operator's backward and not after it, which
rounds otherwise, and makes infinity of eager's NaN where one of them is zero and the operator's own
derivative infinite. AOTAutograd merges such calls where that is done.

Results are the same bit for bit.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.graph.aliases import Memory
from backbay.graph.canonical import canonicalise
from backbay.graph.effects import changes_state, is_pure, is_uninitialised
from backbay.graph.rewrite import replace_node
from backbay.graph.values import value_of
from backbay.kit.passes import graph_pass


@graph_pass()
def common_subexpressions(graph_module: GraphModule) -> int:
    """Compute what is computed twice once; works at Dynamo's level and on functional graphs.

    ::

        before:  y = x.sigmoid() * x.sigmoid()
        after:   a = x.sigmoid(); y = a * a
    """
    # Not torch's CSEPass: it makes one tensor of two results, does not see what is written between,
    # takes 1, 1.0 and True for the same, and loses in-place methods' order.
    graph = graph_module.graph
    respelled = canonicalise(graph)
    memory = Memory(graph)
    seen: dict[Hashable, Node] = {}
    count = 0
    for node in list(graph.nodes):
        if changes_state(node):
            seen.clear()
        key = _key(node, memory)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node and _merged(node, first, memory):
            count += 1
    if respelled or count:
        graph_module.recompile()
    return count


def _merged(node: Node, first: Node, memory: Memory) -> bool:
    if memory.returned(node) and memory.returned(first):
        return False
    memory.merge(node, first)
    replace_node(node, first)
    return True


def _key(node: Node, memory: Memory) -> Hashable | None:
    """Return what decides a node's value; nothing where more than its arguments does."""
    if node.op == "get_attr":
        return ("get_attr", node.target)
    if not is_pure(node) or is_uninitialised(node):
        return None
    if any(memory.mutated(x) for x in (node, *node.all_input_nodes)):
        return None
    results = pytree.tree_leaves(value_of(node))
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in results):
        return None
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    key = (node.op, node.target, tuple(map(_leaf, leaves)), str(structure))
    return key if _is_hashable(key) else None


def _leaf(value: Any) -> Hashable:
    # 1 == 1.0 == True, and 0.0 == -0.0, and each makes another tensor.
    if isinstance(value, Node):
        return value
    if isinstance(value, slice):
        return ("slice", *map(_leaf, (value.start, value.stop, value.step)))
    if isinstance(value, (torch.dtype, torch.device)):
        return value
    return (type(value), repr(value))


def _is_hashable(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
