"""``backend="backbay_print"``: print every graph that Dynamo hands over, then run it eagerly."""

import sys
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from backbay.graph.report import table
from backbay.kit.backend import Backend
from backbay.kit.codegen import Compiled


class PrintGraph(Backend):
    """Prints each graph as a table: operation, name, target, shape, dtype, and the user's line."""

    name = "backbay_print"

    def compile(self, graph_module: GraphModule, _: Sequence[Any]) -> Compiled:
        """Print the graph, and run it as it is."""
        sys.stdout.write(f"{table(graph_module.graph)}\n\n")
        forward: Compiled = graph_module.forward
        return forward


backbay_print = PrintGraph()
