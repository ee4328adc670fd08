"""Compute linear layers of one row as sums, which Inductor writes and fuses by itself.

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

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before, cast_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite

MOST = 2**27
"""Elements of a weight: with more of them, as in a vocabulary's head, Inductor's kernel as it
configures it without tuning was slower than cuBLAS's, on an H200 (``benchmarks/conditions.py``)."""

_ATEN = torch.ops.aten
_MATRIX = 2


@dataclass(frozen=True, kw_only=True)
class OneRowLinears(Rewrite[Call]):
    """Compute linear layers of one row as sums, in inference on CUDA, in 16 bits."""

    summary = "on CUDA, linear layers of one row are sums that Inductor fuses, in inference"
    requires = Requires(
        devices=("cuda",),
        because="it was measured on CUDA",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
        inference=True,
    )
    targets = (F.linear,)
    parameters = ("input", "weight", "bias")

    def site(self, call: Call, context: PassContext) -> Call | None:  # noqa: ARG002 (of those that ask)
        """Return the layer if its input has one row."""
        x = value_of(call.given["input"])
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            return None
        return call if all(type(n) is int and n == 1 for n in x.shape[:-1]) else None

    def replacement(self, site: Call, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return the sum."""
        node, result = site.node, value_of(site.node)
        x, weight, bias = (site.given.get(name) for name in self.parameters)
        _check(node, weight)
        assert isinstance(x, Node)
        assert isinstance(weight, Node)
        # Under autocast all of them are rounded first. The weight itself is not cast: what only
        # depends on a parameter may be computed beforehand, and it would be kept in single
        # precision.
        x, weight = (cast_before(node, y, result.dtype) for y in (x, weight))
        row = call_before(node, _ATEN.reshape.default, x, [1, value_of(weight).shape[1]])
        row = call_before(node, _ATEN._to_copy.default, row, dtype=torch.float32)  # noqa: SLF001 (its name)
        made = call_before(node, _ATEN.mul.Tensor, row, weight)
        made = call_before(node, _ATEN.sum.dim_IntList, made, [-1])
        if isinstance(bias, Node):
            made = call_before(node, _ATEN.add.Tensor, made, cast_before(node, bias, result.dtype))
        made = cast_before(node, made, result.dtype)
        return call_before(node, _ATEN.reshape.default, made, list(result.shape))

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite layers; where none is left, have Inductor combine kernels."""
        count = super().run(graph_module, context)
        inputs = [value_of(x) for x in graph_module.graph.find_nodes(op="placeholder")]
        is_static = not any(isinstance(x, torch.SymInt) for x in inputs)  # others were not tried
        left = graph_module.graph.find_nodes(op="call_function", target=F.linear)
        if count and is_static and not left:
            context.inductor["combo_kernels"] = True
        return count


one_row_linears = OneRowLinears()


def _check(node: Node, weight: Node | None) -> None:
    if not all(is_ordinary(value_of(x)) for x in node.all_input_nodes):
        raise NotApplicable("its tensors are of a subclass")
    value = value_of(weight)
    if not are_numbers((*value.shape, *value.stride())):
        raise NotApplicable("the size of its weight is a symbol")
    if value.dim() != _MATRIX or value.stride(1) != 1:
        raise NotApplicable("the rows of its weight are not contiguous")
    if value.numel() > MOST:
        raise NotApplicable(f"its weight has {value.numel()} elements: too many to pay")
