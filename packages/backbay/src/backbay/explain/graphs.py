"""Graphs as records: every node with its shape, the user's line, and its module."""

import re
from typing import Any

from torch.fx import Graph, Node

from backbay.explain.record import NodeRecord
from backbay.graph.report import rows

_ROOT = re.compile(r"^L\['\w+'\]\.?")


def nodes(graph: Graph) -> tuple[NodeRecord, ...]:
    """Describe each node of a graph, in order."""
    described = zip(graph.nodes, rows(graph), strict=True)
    return tuple(
        NodeRecord(
            name=row.name,
            op=row.op,
            target=row.target,
            shape=row.shape,
            dtype=row.dtype,
            line=row.line,
            module=module_path(node),
            inputs=tuple(x.name for x in node.all_input_nodes),
        )
        for node, row in described
    )


def module_path(node: Node) -> str:
    """Return the path of the innermost module that a node was traced in; empty outside of all."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    paths = [x[0] for x in stack.values() if isinstance(x, tuple) and x]
    return _ROOT.sub("", str(paths[-1])) if paths else ""
