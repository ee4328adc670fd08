"""``backend="backbay_report"``: count operators and what can be fused, then compile with Inductor.

The first exercise of PyTorch's tutorials on custom backends, made right: it keeps the whole graph.
"""

import sys

from torch.fx import GraphModule

from backbay.graph.report import summary
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass


@graph_pass(level="torch")
def report(graph_module: GraphModule) -> int:
    """Print one line for the graph, and one for each operator; changes nothing."""
    found = summary(graph_module.graph)
    lines = [str(found), *(f"  {count}x {name}" for name, count in found.operators.most_common())]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


class ReportGraph(Backend):
    """Reports on each graph, then hands it to Inductor."""

    name = "backbay_report"
    passes = (report,)


backbay_report = ReportGraph()
