"""A linear layer of one row is a sum over each row of its weight, which Inductor writes by itself.

::

    before:  F.linear(x, weight, bias)                       # x has one row
    after:   ((x.float() * weight).sum(-1) + bias).to(x.dtype)

A step of generation for one sequence multiplies matrices by vectors: each weight is read once, and
a plain reduction is for most sizes faster than a library's product. Inductor's kernel for it takes
in what is before and after (normalisation, activation, residual), computes layers of the same sizes
that read the same in one go, and is handed to the GPU in less time than a call of cuBLAS is.
Products and sums are of single precision, as in the library's own kernels. Inductor has this
rewrite, too, and makes it where its ``coordinate_descent_tuning`` is on, which times many forms of
every kernel.

What is left of its kernels can be computed side by side where one does not depend on another
(queries, keys and values, which have unequal widths): Inductor's ``combo_kernels``, which is off by
default, is turned on where all linear layers of a graph are such, and no size is a symbol, unless
the user says otherwise.
"""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import NearMiss
from backbay.graph.put import call_before, cast_before, erase_between, exchange, layout
from backbay.graph.region import between
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes.unfit import UnfitError, must_pay

DEVICES = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)
MOST = 2**27
"""Elements of a weight: with more of them, as in a vocabulary's head, Inductor's kernel as it
configures it without tuning was slower than cuBLAS's, on an H200 (``benchmarks/conditions.py``)."""

_ATEN = torch.ops.aten
_IS_HIP = torch.version.hip is not None
_LINEAR = ("input", "weight", "bias")
_MATRIX = 2


@graph_pass(level="torch")
def one_row_linears(graph_module: GraphModule, context: PassContext) -> int:
    """Compute linear layers of one row as sums, in inference on CUDA, in 16 bits.

    ::

        before:  F.linear(x, weight)
        after:   (x.float() * weight).sum(-1).to(x.dtype)
    """
    count = 0
    for node in graph_module.graph.find_nodes(op="call_function", target=F.linear):
        given = dict(zip(_LINEAR, node.args, strict=False)) | node.kwargs
        if not _has_one_row(given):
            continue
        try:
            _check(node, given)
            inputs = {x for x in given.values() if isinstance(x, Node)}
            must_pay(context, "one_row_linears", between(node, inputs))
            _rewrite(node, given)
        except UnfitError as error:
            context.near.append(NearMiss("one_row_linears", node, str(error)))
            continue
        count += 1
    if not count:
        return 0
    if _is_all(graph_module.graph):
        context.inductor["combo_kernels"] = True
    graph_module.recompile()
    return count


def _is_all(graph: Graph) -> bool:
    """Tell whether no linear layer is left, and no size a symbol, with which it was not tried."""
    inputs = [value_of(x) for x in graph.find_nodes(op="placeholder")]
    is_static = not any(isinstance(x, torch.SymInt) for x in inputs)
    return is_static and not graph.find_nodes(op="call_function", target=F.linear)


def _has_one_row(given: dict[str, Any]) -> bool:
    x = value_of(given["input"])
    return (
        isinstance(x, torch.Tensor)
        and x.dim() > 0
        and all(type(n) is int and n == 1 for n in x.shape[:-1])
    )


def _check(node: Node, given: dict[str, Any]) -> None:
    if not all(is_ordinary(value_of(x)) for x in (node, *node.all_input_nodes)):
        raise UnfitError("its tensors are of a subclass")
    result, weight = value_of(node), value_of(given["weight"])
    where = result.device.type
    if result.requires_grad:
        raise UnfitError("a gradient is wanted")
    if where not in DEVICES or _IS_HIP:
        raise UnfitError(f"it runs on {where}: it was measured on CUDA")
    if result.dtype not in DTYPES:
        raise UnfitError(f"it is of {result.dtype}: it was measured in 16 bits")
    if not all(isinstance(n, int) for n in (*weight.shape, *weight.stride())):
        raise UnfitError("the size of its weight is a symbol")
    if weight.dim() != _MATRIX or weight.stride(1) != 1:
        raise UnfitError("the rows of its weight are not contiguous")
    if weight.numel() > MOST:
        raise UnfitError(f"its weight has {weight.numel()} elements: too many to pay")


def _rewrite(node: Node, given: dict[str, Any]) -> None:
    before, result = node.prev, value_of(node)
    x, weight, bias = (given.get(name) for name in _LINEAR)
    assert isinstance(x, Node)
    assert isinstance(weight, Node)
    # Under autocast all of them are rounded first. The weight itself is not cast: what only depends
    # on a parameter may be computed beforehand, and it would be kept in single precision.
    x, weight = (cast_before(node, y, result.dtype) for y in (x, weight))
    row = call_before(node, _ATEN.reshape.default, x, [1, value_of(weight).shape[1]])
    row = call_before(node, _ATEN._to_copy.default, row, dtype=torch.float32)  # noqa: SLF001 (its name)
    made = call_before(node, _ATEN.mul.Tensor, row, weight)
    made = call_before(node, _ATEN.sum.dim_IntList, made, [-1])
    if isinstance(bias, Node):
        made = call_before(node, _ATEN.add.Tensor, made, cast_before(node, bias, result.dtype))
    made = cast_before(node, made, result.dtype)
    made = call_before(node, _ATEN.reshape.default, made, list(result.shape))
    if layout(value_of(made)) != layout(result):
        erase_between(before, node)
        raise UnfitError("its result would be laid out otherwise")
    exchange(node, made)
