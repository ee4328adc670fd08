"""Compute SiLU by our own Triton operator, where it can take the tensor and is large enough.

::

    before:  torch.nn.functional.silu(x)
    after:   torch.ops.backbay.silu(x)

It is here to show how a kernel gets into a graph. Where Inductor compiles the graph, its own fusion
is as fast, and takes the neighbours along (``benchmarks/silu_gpu.py``).
"""

from dataclasses import dataclass

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.kernels import silu as kernel
from backbay.kit.passes import Call, NotApplicable, PassContext, Rewrite


@dataclass(frozen=True, kw_only=True)
class SiluToKernel(Rewrite[Call]):
    """Call ``backbay::silu`` for every ``F.silu`` that the kernel can take, and that pays."""

    summary = "SiLU is our own kernel where it can take the tensor and pays"
    targets = (F.silu,)
    sources = (kernel,)
    is_timed = False

    def replacement(self, site: Call, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        node = site.node
        if len(node.args) != 1 or node.kwargs.get("inplace", False):
            raise NotApplicable("it works in place")
        value = value_of(node.args[0])
        if not is_ordinary(value):
            raise NotApplicable(f"{node.args[0]} is not an ordinary tensor that is known")
        if not are_numbers(value.shape):
            raise NotApplicable("its size is a symbol: whether the kernel pays is not known")
        reason = kernel.pays(value)
        if reason is not None:
            raise NotApplicable(reason)
        operator = kernel.silu  # registers it: torch.ops has it only after that
        assert callable(operator)
        return call_before(node, torch.ops.backbay.silu.default, *node.args)


silu_to_kernel = SiluToKernel()
