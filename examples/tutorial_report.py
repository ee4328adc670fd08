"""PyTorch's first exercise on custom backends: a backend that says what is in the graph.

    python examples/tutorial_report.py

A backend is handed Dynamo's graph: what the user called, before it becomes ATen operators. What
computes each element from the same element, and is connected, can be fused into one loop.
"""

import torch

from backbay.graph.report import summary, target_name
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.proof import Workload, observe


@graph_pass(level="torch")
def report(graph_module: torch.fx.GraphModule) -> int:
    """Print what the graph holds; nothing is changed, so the whole graph goes on."""
    found = summary(graph_module.graph)
    print(found)
    targets = {node.name: target_name(node) for node in graph_module.graph.nodes}
    for group in found.groups:
        print("  fusable:", *(targets[name] for name in group))
    return 0


class Report(Backend):
    """Reports, then runs the graph as it is; with codegen = "inductor" it would be compiled."""

    passes = (report,)
    codegen = "eager"


class Model(torch.nn.Module):
    """Twelve operators, of which three groups can be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for a batch of vectors."""
        h = torch.relu(self.a(x) + 1)
        h = self.b(h).sigmoid() * 2
        h = self.c(h)
        h = h - h.mean(-1, keepdim=True)
        return (h * h).tanh().sum()


if __name__ == "__main__":
    torch.manual_seed(0)
    workload = Workload(model=Model(), args=(torch.randn(4, 8),))
    compiled = torch.compile(workload.model, backend=Report())
    ours, eager = (observe(x, workload, train=True) for x in (compiled, workload.model))
    for what in ("tensors", "gradients"):
        pairs = [(x, getattr(ours, what)[name]) for name, x in getattr(eager, what).items()]
        same = sum(torch.equal(x, y) for x, y in pairs)
        print(f"{what} as eager's, bit for bit: {same} of {len(pairs)}")
