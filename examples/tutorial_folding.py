"""PyTorch's second exercise on custom backends: numbers that meet in a row are folded into one.

    python examples/tutorial_folding.py

``x * 2 * 3`` becomes ``x * 6``. Where that would round otherwise, as in ``x * 0.1 * 0.2``, nothing
is changed. `backbay.kit.rewrites.scalar_chain` does the same with sums, quotients and more.
"""

import operator

import torch
from torch.fx import GraphModule, Node

from backbay.graph.aliases import Memory
from backbay.graph.canonical import canonicalise, is_number
from backbay.graph.rewrite import call_before, replace_node
from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.proof import Workload, make_golden, observe


def factor(node: Node) -> float | None:
    """Return the number that a node multiplies a floating-point tensor by."""
    if node.target is not operator.mul or not is_number(node.args[1]):
        return None
    value = value_of(node.args[0])
    return node.args[1] if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def is_exact(one: float, other: float) -> bool:
    """Whether one product rounds as two do: of whole numbers, where one is a power of two."""
    whole = all(float(x).is_integer() and 0 < abs(x) < 2**12 for x in (one, other))
    return whole and any(abs(int(x)).bit_count() == 1 for x in (one, other))


@graph_pass(level="torch")
def join_factors(graph_module: GraphModule) -> int:
    """Make x * 6 of x * 2 * 3."""
    graph = graph_module.graph
    canonicalise(graph)  # 2 * x, x.mul(2) and torch.mul(x, 2) are all x * 2 from here on
    memory, count = Memory(graph), 0
    for node in list(graph.nodes):
        last = factor(node)
        inner = node.args[0] if last is not None else None
        first = factor(inner) if isinstance(inner, Node) else None
        if first is None or not is_exact(first, last):
            continue
        if len(inner.users) > 1 or memory.mutated(inner.args[0]):
            continue  # x * 2 is used elsewhere, or x is another by the time of the second product
        replace_node(node, call_before(node, operator.mul, inner.args[0], first * last))
        graph.erase_node(inner)
        count += 1
    graph_module.recompile()
    print("folds:", count)
    print("factors left:", *(x for x in map(factor, graph.nodes) if x is not None))
    return count


class Fold(Backend):
    """Folds, then runs the graph as it is; with codegen = "inductor" it would be compiled."""

    passes = (join_factors,)
    codegen = "eager"


class Model(torch.nn.Module):
    """A chain to fold, one that would round otherwise, and one whose middle is used twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what has the shape of x."""
        shared = x * 2
        return 4 * (x * 2).mul(3) + x * 0.1 * 0.2 + shared * 8 + shared


if __name__ == "__main__":
    torch.manual_seed(0)
    workload = Workload(model=Model(), args=(torch.randn(64),))
    golden = make_golden(workload, train=True)
    outcome = observe(torch.compile(workload.model, backend=Fold()), workload, train=True)
    difference = outcome.tensors["output"] - golden.eager.tensors["output"]
    print("difference from eager:", difference.abs().max().item())
    print("right, and so are the gradients:", golden.judge(outcome).passed)
