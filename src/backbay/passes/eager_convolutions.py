"""On a CPU, a convolution with more weights than activations is called as eager calls it.

::

    before:  torch.conv2d(x, weight)                  # of (2, 512, 2, 2) and (512, 512, 3, 3)
    after:   torch.ops.backbay.convolution(x, weight)

Inductor lays out every convolution of a CPU with its channels last, and copies the weights, which
models keep channels first, in every call. That pays where a few weights meet many pixels. Where the
weights are more than all the pixels, the copy takes as long as the convolution, and oneDNN is
slower with it, too. Such a convolution gets its inputs as they are. What is round it stays
Inductor's, which turns activations from one layout to the other where they meet: those are few.

Only for inference in float32, where all sizes are known. Weights of 1 by 1 need no copy.
"""

import torch
from torch.fx import GraphModule, Node

from backbay.graph.match import NearMiss
from backbay.graph.put import call_before, exchange
from backbay.graph.values import value_of
from backbay.kernels import convolution as kernel
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes import convolutions
from backbay.passes.convolutions import Convolution
from backbay.passes.unfit import UnfitError, must_pay

PAYS_FROM = 2**17
"""Weights from which their copy takes longer than the operator's own call, of 30 microseconds."""


@graph_pass(level="torch", sources=(kernel, convolutions))
def eager_convolutions(graph_module: GraphModule, context: PassContext) -> int:
    """Call convolutions whose weights outweigh their activations as eager does; for CPUs.

    ::

        before:  torch.conv2d(x, weight)
        after:   torch.ops.backbay.convolution(x, weight)
    """
    count = 0
    for node in convolutions.found_in(graph_module.graph, 2):
        try:
            _rewrite(node, context)
        except UnfitError as error:
            context.near.append(NearMiss("eager_convolutions", node, str(error)))
            continue
        count += 1
    if count:
        graph_module.recompile()
    return count


def _rewrite(node: Node, context: PassContext) -> None:
    found = Convolution.of(node)
    _check(found)
    must_pay(context, "eager_convolutions", [node])
    given = (found.x, found.weight, found.bias, *found.how)
    exchange(node, call_before(node, kernel.OPERATOR, *given))


def _check(found: Convolution) -> None:
    x, weight, result = map(value_of, (found.x, found.weight, found.node))
    if result.requires_grad:
        raise UnfitError("its gradient is wanted")
    if x.device.type != "cpu":
        raise UnfitError(f"it runs on {x.device.type}, where Inductor chooses layouts by use")
    if {x.dtype, weight.dtype, result.dtype} != {torch.float32}:
        raise UnfitError(f"it takes {x.dtype}, and gives {result.dtype}: it pays in float32")
    if not all(isinstance(n, int) for n in (*x.shape, *weight.shape, *result.shape)):
        raise UnfitError("its size is a symbol: whether it pays is not known")
    if not x.is_contiguous() or not weight.is_contiguous():
        raise UnfitError("its input or weight has not its channels first")
    if weight.is_contiguous(memory_format=torch.channels_last):
        raise UnfitError("its weight has its channels last at the same time")
    if weight.numel() < max(PAYS_FROM, x.numel() + result.numel()):
        raise UnfitError(
            f"{weight.numel()} weights, {x.numel() + result.numel()} activations: the copy that "
            "Inductor makes of the weights pays"
        )
