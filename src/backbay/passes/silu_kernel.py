"""SiLU by our own Triton operator, where it can take the tensor and is large enough.

::

    before:  torch.nn.functional.silu(x)
    after:   torch.ops.backbay.silu(x)

It is here to show how a kernel gets into a graph. Where Inductor compiles the graph, its own fusion
is as fast, and takes the neighbours along (``benchmarks/silu_gpu.py``).
"""

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import NearMiss
from backbay.graph.put import call_before, exchange
from backbay.graph.values import is_ordinary, value_of
from backbay.kernels import silu as kernel
from backbay.kit.passes import PassContext, graph_pass


@graph_pass(level="torch", sources=(kernel,))
def silu_to_kernel(graph_module: GraphModule, context: PassContext) -> int:
    """Call ``backbay::silu`` for every ``F.silu`` that the kernel can take, and that pays."""
    changes = 0
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not F.silu:
            continue
        reason = _refusal(node)
        if reason is not None:
            context.near.append(NearMiss("SiLU's kernel", node, reason))
            continue
        operator = kernel.silu  # registers it: torch.ops has it only after that
        assert callable(operator)
        exchange(node, call_before(node, torch.ops.backbay.silu.default, node.args[0]))
        changes += 1
    if changes:
        graph_module.recompile()
    return changes


def _refusal(node: Node) -> str | None:
    if len(node.args) != 1 or node.kwargs.get("inplace", False):
        return "it works in place"
    value = value_of(node.args[0])
    if not is_ordinary(value):
        return f"{node.args[0]} is not an ordinary tensor that is known"
    if not all(isinstance(size, int) for size in value.shape):
        return "its size is a symbol: whether the kernel pays is not known"
    return kernel.pays(value)
