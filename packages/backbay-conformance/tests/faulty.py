"""Backends with one fault each, for the fuzzer to find."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

Edit = Callable[[Node], Any]
"""Returns what a node becomes: another node, a number, or the node itself."""


def _edited(edit: Edit) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
    def backend(graph_module: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
        for node in list(graph_module.graph.nodes):
            other = edit(node)
            if other is not node:
                node.replace_all_uses_with(other)
        graph_module.recompile()
        return lambda *args: graph_module(*args)

    return backend


def _called(node: Node, *names: str) -> bool:
    return node.op == "call_method" and node.target in names


def _without_conj(node: Node) -> Any:
    return node.args[0] if _called(node, "conj") else node


def _cast_for_view(node: Node) -> Any:
    if _called(node, "view") and isinstance(node.args[1], torch.dtype):
        node.target = "to"
    return node


def _along_another(node: Node) -> Any:
    if _called(node, "cumsum", "softmax", "log_softmax") and len(node.args) > 1:
        node.args = (node.args[0], -1 if node.args[1] == 0 else 0)
    return node


def _copied_view(node: Node) -> Any:
    views = ("transpose", "permute", "select", "narrow", "diagonal", "unsqueeze", "t", "unfold")
    if not _called(node, *views):
        return node
    with node.graph.inserting_after(node):
        copy = node.graph.call_method("clone", (node,))
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    return node


def baked_size(graph_module: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
    """Take every size for what it was at first."""
    for node in graph_module.graph.find_nodes(op="placeholder"):
        size = node.meta["example_value"]
        if isinstance(size, torch.SymInt):
            for user in list(node.users):
                user.replace_input_with(node, size.node.hint)
    graph_module.recompile()
    return lambda *args: graph_module(*args)


def lost_write(graph_module: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
    """Lose what is written through a view."""
    views = ("transpose", "select", "narrow", "diagonal", "unsqueeze", "view", "getitem")
    for node in list(graph_module.graph.nodes):
        writes = node.op == "call_method" and node.target.endswith("_")
        source = node.args[0] if writes else None
        if isinstance(source, Node) and any(x in source.name for x in views):
            node.replace_all_uses_with(source)
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return lambda *args: graph_module(*args)


conj_dropped = _edited(_without_conj)
dtype_view_is_cast = _edited(_cast_for_view)
wrong_dimension = _edited(_along_another)
view_is_copy = _edited(_copied_view)

FAULTS = (
    "conj_dropped",
    "dtype_view_is_cast",
    "wrong_dimension",
    "view_is_copy",
    "baked_size",
    "lost_write",
)
