"""Fuse a linear layer and the GELU or ReLU after it into one call of cuBLASLt.

::

    before:  F.gelu(F.linear(x, weight, bias), approximate="tanh")
    after:   torch.ops.aten._addmm_activation(bias, x, weight.t(), use_gelu=True)

The product's epilogue adds the bias and computes the activation before it writes: what is between
is neither written nor read again, and rounded once less. On CUDA that GELU is the approximation by
tanh, however it is spelled; the one by erf is never taken for it. On other devices the operator
means another GELU, so the pass is for CUDA alone.

A layer without a bias gets zeros for one, which a graph makes once for all layers of a size. On an
H200, two such layers with ReLU between them were 1.11 and 1.17 times as fast as Inductor's, zeros
included (``benchmarks/patterns.py``, ``feed_forward_relu``).

Only where nothing else reads the linear layer's result; views between it and the activation stay,
after both. And only where products read the activation, or the caller: anything else Inductor
computes in one kernel with it, and nothing would be saved.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.match import Match, first_input, is_call
from backbay.graph.region import between
from backbay.graph.rewrite import bound, call_before, cast_before
from backbay.graph.values import are_numbers, carry, computed, is_ordinary, value_of
from backbay.kit.passes import (
    EIGHTS,
    Call,
    NotApplicable,
    PassContext,
    Replacement,
    Requires,
    Rewrite,
    rewrite_pass,
)
from backbay.kit.rewrites import gelu

_ATEN = torch.ops.aten
_LAYERS = (F.linear, torch.addmm)
_PRODUCTS = (F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul")
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_VIEWS = ("view", "reshape")
_MATRIX = 2


@dataclass(frozen=True, kw_only=True)
class _Site:
    """A linear layer, and its activation."""

    product: Node
    """``F.linear``, or ``torch.addmm``."""
    node: Node
    """The activation."""
    read: Node
    """What it activates: the product, or a view of it."""


@dataclass(frozen=True, kw_only=True)
class LinearEpilogues(Rewrite[_Site]):
    """Compute GELU by tanh, and ReLU, in the product before it; for CUDA."""

    summary = "on CUDA, a linear layer with its ReLU or GELU by tanh is one call, in inference"
    # In 16 bits as it was measured in bfloat16, on an H200. In single precision the product takes
    # longer, and what is saved is less of it.
    requires = Requires(
        devices=("cuda",),
        because="the epilogue is cuBLASLt's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it pays in 16 bits",
        inference=True,
    )
    targets = (*_RELUS, F.gelu)
    sources = (effects, gelu)

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[_Site]:
        """Yield layers with their activations, GELU that is spelled out among them."""
        products = [x for x in graph_module.graph.nodes if x.target in _LAYERS]
        if all(self._refusal(x, value_of(x)) is not None for x in products):
            return  # and spare the graph another spelling
        if gelu.may_be_approximate(graph_module.graph):
            spelled = gelu.approximate_gelu(self._is_of_a_layer)
            rewrite_pass(*spelled, name="rewrite_gelu").run(graph_module, context)
        yield from super().sites(graph_module, context)

    def site(self, call: Call, context: PassContext) -> _Site | None:  # noqa: ARG002 (of those that ask)
        """Return a layer with its activation."""
        node, read = call.node, first_input(call.node)
        if node.target is F.gelu and node.kwargs.get("approximate", "none") != "tanh":
            return None
        product = _product_of(read)
        return None if product is None else _Site(product=product, node=node, read=read)

    def replacement(self, site: _Site, context: PassContext) -> Replacement:
        """Return one call for product and activation; views between them stay, after both."""
        if len(site.read.users) > 1:
            raise NotApplicable(f"{site.read.name}, which it activates, is used elsewhere, too")
        reason = self._refusal(site.product, value_of(site.node))
        if reason is not None:
            raise NotApplicable(reason)
        reader = _fusing_reader(site.node)
        if reader is not None:
            raise NotApplicable(f"{reader.name} reads it: Inductor computes both at once")
        place, (x, weight, bias) = site.product, _given(site.product)
        source, dtype = x, value_of(place).dtype
        covers = between(site.node, place.all_input_nodes)
        if bias is None:
            value, size = value_of(place), value_of(weight).shape[0]
            key = ("zeros", size, value.dtype, value.device)
            bias = context.kept(key, lambda: _zeros(place, size))
        x, weight, bias = (cast_before(place, y, dtype) for y in (x, weight, bias))
        if place.target is F.linear:
            weight = call_before(place, _ATEN.t.default, weight)
        if value_of(x).dim() > _MATRIX:
            x = call_before(place, _ATEN.reshape.default, x, [-1, value_of(weight).shape[0]])
        activate = _ATEN._addmm_activation.default  # noqa: SLF001 (its name)
        is_gelu = site.node.target is F.gelu
        made = call_before(place, activate, bias, x, weight, use_gelu=is_gelu)
        if value_of(place).dim() > _MATRIX:
            sizes = [  # numbers, or nodes where they are symbols
                n if isinstance(n, int) else call_before(place, _ATEN.sym_size.int, source, dim)
                for dim, n in enumerate(value_of(place).shape[:-1])
            ]
            sizes.append(value_of(weight).shape[1])  # a number, which torch may have as a fraction
            made = call_before(place, _ATEN.reshape.default, made, sizes)
        return Replacement({site.node: site.read, place: made}, covers)

    def _refusal(self, product: Node, result: Any) -> str | None:
        """Return why a product is left as it is; None where it takes an activation."""
        *operands, bias = _given(product)
        given = operands if bias is None else [*operands, bias]
        if not all(is_ordinary(value_of(x)) for x in (*given, product)):
            return "it is a product with factors, or of no ordinary tensors"
        x, weight, *biases = map(value_of, given)
        value, sizes = value_of(product), [n for y in (weight, *biases) for n in y.shape]
        try:
            self.requires.check(value)
        except NotApplicable as error:
            return str(error)
        reasons = {
            "the activation has another dtype": result.dtype != value.dtype,
            "its input is no matrix": x.dim() < _MATRIX,
            "its bias is no vector": any(y.dim() != 1 for y in biases),
            "its weight is no matrix": weight.dim() != _MATRIX,
            "the size of its weight is a symbol": not are_numbers(sizes),
            "it has no elements": any(isinstance(n, int) and n == 0 for n in sizes),
            "its sizes are not in eights": any(isinstance(n, int) and n % EIGHTS for n in sizes),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _is_of_a_layer(self, match: Match) -> str | None:
        """Return why GELU that is spelled out is not rewritten: it is not of a layer taken here."""
        x = match.inputs[0]
        product = _product_of(x)
        if product is None or not set(x.users) <= set(match.nodes):
            return "it is not the only reader of a linear layer"
        if _fusing_reader(match.outputs[0]) is not None:
            return "what reads it is computed with it"
        return self._refusal(product, value_of(match.outputs[0]))


linear_epilogues = LinearEpilogues()


def _fusing_reader(node: Node) -> Node | None:
    """Return a reader that is computed with the activation; None if all are products."""
    for user in node.users:
        if user.op == "output" or user.target in _PRODUCTS:
            continue
        is_idle = effects.is_dropout(user) and not effects.drops(user)
        further = _fusing_reader(user) if is_idle or user.target in _VIEWS else user
        if further is not None:
            return further
    return None


def _product_of(node: Any) -> Node | None:
    """Go up through views that nothing else reads to a product; None where there is none."""
    while is_call(node, _VIEWS):
        node = node.args[0]
        if isinstance(node, Node) and len(node.users) > 1:
            return None
    return node if is_call(node, _LAYERS) else None


def _given(product: Node) -> tuple[Any, Any, Any]:
    """Return input, weight and bias; None for no bias, and for all where there are factors."""
    if product.target is F.linear:
        given = bound(product, ("input", "weight", "bias"))
        return given["input"], given["weight"], given.get("bias")
    if len(product.args) != 3 or product.kwargs:  # noqa: PLR2004 (without factors)
        return None, None, None
    bias, x, weight = product.args
    return x, weight, bias


def _zeros(product: Node, size: int) -> Node:
    """Put a bias of zeros in front of every layer, and of what switches autocast."""
    graph: Graph = product.graph
    value = value_of(product)
    how: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    first = next(x for x in graph.nodes if x.op != "placeholder")
    with graph.inserting_before(first):
        made = graph.call_function(_ATEN.zeros.default, ([size],), how)
    carry(made, product)
    made.meta["example_value"] = computed(lambda x: x.new_zeros([size]), value)
    return made
