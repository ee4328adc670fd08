"""PyTorch's third exercise on custom backends: GELU, spelled out, becomes one operator.

    python examples/tutorial_gelu.py

A pattern is a function to find and one to put in its place. Methods, operators and functions are
the same to it, and so is the order of factors. `backbay.kit.rewrites.gelu` has more
spellings.
"""

import math

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import Pattern, is_floating_point
from backbay.graph.report import summary
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import graph_pass, rewrite_pass
from backbay.proof import Workload, make_golden, observe


def spelled_out(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by tanh, as GPT-2 has it."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


gelu = Pattern(
    match=spelled_out,
    replacement=lambda x: F.gelu(x, approximate="tanh"),
    conditions=(is_floating_point(),),
    tolerance=1e-6,  # people write 0.7978845608 for math.sqrt(2 / math.pi)
)


@graph_pass(level="torch")
def count(graph_module: torch.fx.GraphModule) -> int:
    """Print how many operators there are."""
    found = summary(graph_module.graph)
    print(f"{found}, {found.operators['tanh']}x tanh, {found.operators['gelu']}x gelu")
    return 0


class Gelu(Backend):
    """Rewrites GELU, then runs the graph; with codegen = "inductor" it would be compiled."""

    passes = (count, rewrite_pass(gelu, name="gelu"), count)
    codegen = "eager"


class Model(torch.nn.Module):
    """GELU twice, in two spellings; and once with another number, which is no GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what has the shape of x."""
        h = self.b(spelled_out(self.a(x)))
        h = (torch.tanh((h.pow(3).mul(0.044715) + h) * 0.7978845608) + 1) * (h * 0.5)
        h = self.c(h)
        return 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.05 * h**3)))


if __name__ == "__main__":
    torch.manual_seed(0)
    workload, backend = Workload(model=Model(), args=(torch.randn(64, 16),)), Gelu()
    golden = make_golden(workload, train=True)
    with collected() as reports:
        outcome = observe(torch.compile(workload.model, backend=backend), workload, train=True)
    print("matches:", sum(report.changes for report in reports))
    difference = outcome.tensors["output"] - golden.eager.tensors["output"]
    print(f"difference from eager: {difference.abs().max().item():.1e}")
    print("right, and so are the gradients:", golden.judge(outcome).passed)
