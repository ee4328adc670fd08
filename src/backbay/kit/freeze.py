"""Parameters and buffers as constants of a graph, for inference.

Dynamo hands parameters over as inputs, so that a changed weight is seen. A code generator that
packs or folds weights wants them once, when it compiles.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from backbay.graph.effects import may_write
from backbay.graph.put import hold

FROZEN = "_frozen_"
"""How the attributes begin that hold them."""


def freeze(graph_module: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Make each parameter and buffer that a graph does not write a constant of it, in place.

    The inputs stay, unused: Dynamo passes them all the same.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: its inputs; Dynamo marks which of them are parameters and buffers.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, example_inputs, strict=True):
        if _is_constant(node, value):
            _embed(graph_module, node, value)
    graph_module.recompile()


def _is_constant(node: Node, value: Any) -> bool:
    # Dynamo's own mark: torch has no public one for what it holds constant from call to call.
    static = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, torch.Tensor) and static and not any(map(may_write, node.users))


def _embed(graph_module: GraphModule, node: Node, value: torch.Tensor) -> None:
    name = hold(graph_module, value.detach(), FROZEN)
    first = next(n for n in graph_module.graph.nodes if n.op != "placeholder")
    with graph_module.graph.inserting_before(first):
        constant = graph_module.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
