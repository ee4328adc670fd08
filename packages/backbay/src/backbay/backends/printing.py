"""``backend="backbay_print"``: print every graph that Dynamo hands over, then run it eagerly."""

import sys

from torch.fx import GraphModule

from backbay.graph.report import table
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass


@graph_pass(level="torch")
def print_graph(graph_module: GraphModule) -> int:
    """Print a graph; changes nothing."""
    sys.stdout.write(f"{table(graph_module.graph)}\n\n")
    return 0


class PrintGraph(Backend):
    """Prints each graph as a table: operation, name, target, shape, dtype, and the user's line."""

    name = "backbay_print"
    passes = (print_graph,)
    codegen = "eager"


backbay_print = PrintGraph()
