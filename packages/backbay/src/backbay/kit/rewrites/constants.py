"""Compute what depends on constants only once, when the graph is compiled.

::

    before:  half = torch.arange(0, 8, 2); f = 10000.0 ** (-half / 8); return x * f
    after:   f = self._folded_0; return x * f

Constants are tensors that the graph makes from numbers (``torch.arange``, ``torch.full``, at ATen's
level ``aten.scalar_tensor``), constants that the tracer wrote into the graph, and pure operators on
those. A constructor alone stays: code generators make it for less than a load costs.

Not folded: random or uninitialised values, what something writes, sizes that are symbols, more than
1 MiB, and a buffer or parameter of the model, unless its backend freezes them: who owns it may
change it between calls. Where the caller gets the result, or a view of it, each call gives a fresh
copy: the caller may write to it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from backbay.graph.aliases import Memory
from backbay.graph.effects import is_pure, is_uninitialised
from backbay.graph.rewrite import FROZEN, call_before, hold, layout, replace_node
from backbay.graph.values import call, storages, tensors_in, value_of
from backbay.kit.passes import graph_pass

MOST_BYTES = 2**20
"""Of one folded tensor: what is larger is cheaper to compute than to keep."""
_TRACED = ("_tensor_constant", "_folded_", FROZEN)
"""How attributes begin that hold constants; others are the model's own."""

Values = dict[Node, Any]


@graph_pass()
def fold_constants(graph_module: GraphModule) -> int:
    """Compute what only depends on constants once; works at Dynamo's level and on ATen graphs."""
    # Not torch's constant_fold: it folds parameters, which a user trains, knows randomness of ATen
    # only, hands folded tensors out, and runs whatever function it finds.
    graph, memory = graph_module.graph, Memory(graph_module.graph)
    values = _constants(graph_module, memory)
    ends = [x for x in values if _is_end(x, values)]
    count = sum(_folded(graph_module, x, values[x], memory) for x in ends)
    if count:
        for node in reversed(list(values)):
            if not node.users and node.graph is graph and not node._erased:  # noqa: SLF001 (no other)
                graph.erase_node(node)
        graph_module.recompile()
    return count


def _constants(graph_module: GraphModule, memory: Memory) -> Values:
    """Compute every node that is constant, in order."""
    values: Values = {}
    with _disable_current_modes(), torch.no_grad():
        for node in graph_module.graph.nodes:
            own = storages(node) or frozenset()
            is_view = any(not own.isdisjoint(storages(x) or ()) for x in node.all_input_nodes)
            shared = memory.returned(node) and is_view  # views must go on sharing it
            if not shared and not memory.mutated(node) and _depends_on(node, values):
                value = _value(graph_module, node, values)
                if _is_small(value):
                    values[node] = value
    return values


def _depends_on(node: Node, values: Mapping[Node, Any]) -> bool:
    if node.op == "get_attr":
        return str(node.target).startswith(_TRACED)
    if node.op not in {"call_function", "call_method"} or not is_pure(node):
        return False
    return not is_uninitialised(node) and all(x in values for x in node.all_input_nodes)


def _value(graph_module: GraphModule, node: Node, values: Mapping[Node, Any]) -> Any:
    if node.op == "get_attr":
        return getattr(graph_module, str(node.target))
    if _has_symbols(node) or not _is_small(value_of(node)):
        return None
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return call(node, arguments, keywords)


def _has_symbols(node: Node) -> bool:
    """Whether the size of a node's value is known only when it runs."""
    leaves = pytree.tree_leaves((value_of(node), node.args, node.kwargs))
    sizes = [y for x in tensors_in(leaves) for y in (*x.shape, *x.stride())]
    return any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in (*leaves, *sizes))


def _is_small(value: Any) -> bool:
    leaves, tensors = pytree.tree_leaves(value), tensors_in(value)
    known = len(tensors) == len(leaves) > 0
    return known and all(x.nbytes <= MOST_BYTES and not x.requires_grad for x in tensors)


def _is_end(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether a node is the last constant one of its chain, and not the only one."""
    if node.op == "get_attr" or not isinstance(values[node], torch.Tensor):
        return False
    return bool(node.all_input_nodes) and any(user not in values for user in node.users)


def _folded(graph_module: GraphModule, node: Node, value: torch.Tensor, memory: Memory) -> bool:
    returned = memory.returned(node)
    with _disable_current_modes():
        given = value.clone() if returned else value
    if not _is_as_promised(given, value_of(node)):
        return False
    with graph_module.graph.inserting_before(node):
        constant = graph_module.graph.get_attr(hold(graph_module, value, "_folded_"))
    constant.meta = dict(node.meta)
    clone = torch.ops.aten.clone.default if "val" in node.meta else torch.clone
    replace_node(node, call_before(node, clone, constant) if returned else constant)
    return True


def _is_as_promised(value: torch.Tensor, promised: Any) -> bool:
    """Whether what was computed here is what the graph would give where it runs."""
    if not isinstance(promised, torch.Tensor) or promised.requires_grad:
        return False
    return layout(value) == layout(promised)
