"""A linear layer and the GELU or ReLU after it become one call of cuBLASLt, in inference on CUDA.

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

from backbay.graph.match import Match, NearMiss
from backbay.graph.put import call_before, cast_before, erase_between, exchange, layout
from backbay.graph.region import between
from backbay.graph.values import carry, computed, is_ordinary, value_of
from backbay.kit.passes import PassContext, graph_pass, rewrite_pass
from backbay.passes import dropout, gelu
from backbay.passes.unfit import UnfitError, must_pay

DEVICES = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)
"""Of the product: measured in bfloat16, on an H200. In single precision the product takes longer,
and what is saved is less of it."""

EIGHTS = 8
"""Of a layer's inputs, and of its results: others are padded by Inductor, or read slowly."""

_ATEN = torch.ops.aten
_PRODUCTS = (F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul")
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_VIEWS = ("view", "reshape")
_LINEAR = ("input", "weight", "bias")
_MATRIX = 2
_IS_HIP = torch.version.hip is not None


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A linear layer, and its activation."""

    product: Node
    """``F.linear``, or ``torch.addmm``."""
    activation: Node
    is_gelu: bool
    x: Node
    weight: Node
    """As ``addmm`` takes it where the product is one, else transposed."""
    bias: Node | None

    @property
    def nodes(self) -> list[Node]:
        """All of it."""
        return between(self.activation, self.product.all_input_nodes)


def _is_of_a_layer(match: Match) -> str | None:
    """Say why GELU that is spelled out is not rewritten: it is not that of a layer taken here."""
    x = match.inputs[0]
    product = _product_of(x)
    if product is None or not set(x.users) <= set(match.nodes):
        return "it is not the only reader of a linear layer"
    if _fusing_reader(match.outputs[0]) is not None:
        return "what reads it is computed with it"
    return _refusal(product, value_of(match.outputs[0]))


class _Zeros:
    """Biases for layers that have none: one of each size, dtype and device, for a whole graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[Any, Node] = {}

    def bias_of(self, layer: _Layer) -> Node:
        """Give the bias for a layer."""
        value, size = value_of(layer.product), value_of(layer.weight).shape[0]
        kind = size, value.dtype, value.device
        if kind not in self._made:
            self._made[kind] = self._put(layer.product, *kind)
        return self._made[kind]

    def _put(self, product: Node, size: int, dtype: torch.dtype, device: torch.device) -> Node:
        how: dict[str, Any] = {"dtype": dtype, "device": device}
        # In front of every layer, and of what switches autocast.
        first = next(x for x in self._graph.nodes if x.op != "placeholder")
        with self._graph.inserting_before(first):
            made = self._graph.call_function(_ATEN.zeros.default, ([size],), how)
        carry(made, product)
        made.meta["example_value"] = computed(lambda x: x.new_zeros([size]), value_of(product))
        return made

    def drop_unused(self) -> None:
        """Erase what no layer took after all."""
        for node in self._made.values():
            if not node.users:
                self._graph.erase_node(node)


_one_gelu = rewrite_pass(*gelu.approximate_gelu(_is_of_a_layer), name="rewrite_gelu")


@graph_pass(level="torch", sources=(dropout, gelu))
def linear_epilogues(graph_module: GraphModule, context: PassContext) -> int:
    """Compute GELU by tanh, and ReLU, in the product before it; for CUDA.

    ::

        before:  F.relu(F.linear(x, weight, bias))
        after:   torch.ops.aten._addmm_activation(bias, x, weight.t())
    """
    products = [x for x in graph_module.graph.nodes if x.target in {F.linear, torch.addmm}]
    if not any(_refusal(x, value_of(x)) is None for x in products):
        return 0  # and spare the graph another spelling
    if gelu.may_be_approximate(graph_module.graph):
        _one_gelu.run(graph_module, context)
    zeros, count = _Zeros(graph_module.graph), 0
    for node in list(graph_module.graph.nodes):
        try:
            layer = _layer(node)
            if layer is None:
                continue
            must_pay(context, "linear_epilogues", layer.nodes)
            _rewrite(layer, zeros)
        except UnfitError as error:
            context.near.append(NearMiss("linear_epilogues", node, str(error)))
            continue
        count += 1
    zeros.drop_unused()
    if count:
        graph_module.recompile()
    return count


# 1. What is found


def _layer(activation: Node) -> _Layer | None:
    """Read a layer from its activation; None where it is no activation, or not a layer's.

    Raises:
        UnfitError: it is one that can't be taken.
    """
    is_gelu = activation.target is F.gelu and _approximation(activation) == "tanh"
    if not activation.op.startswith("call") or not (is_gelu or activation.target in _RELUS):
        return None
    y = activation.args[0] if activation.args else activation.kwargs.get("input")
    product = _product_of(y)
    if product is None or not isinstance(y, Node):
        return None
    if len(y.users) > 1:
        raise UnfitError(f"{y.name}, which it activates, is used elsewhere, too")
    reason = _refusal(product, value_of(activation))
    if reason is not None:
        raise UnfitError(reason)
    reader = _fusing_reader(activation)
    if reader is not None:
        raise UnfitError(f"{reader.name} reads it: Inductor computes both at once")
    x, weight, bias = _given(product)
    return _Layer(
        product=product, activation=activation, is_gelu=is_gelu, x=x, weight=weight, bias=bias
    )


def _fusing_reader(node: Node) -> Node | None:
    """Give a reader that would have been computed with the activation; None if all are products."""
    for user in node.users:
        if user.op == "output" or user.target in _PRODUCTS:
            continue
        is_idle = dropout.is_dropout(user) and not dropout.drops(user)
        further = _fusing_reader(user) if is_idle or user.target in _VIEWS else user
        if further is not None:
            return further
    return None


def _approximation(node: Node) -> Any:
    return node.kwargs.get("approximate", "none")


def _product_of(node: Any) -> Node | None:
    """Go up through views that nothing else reads to a product; None where there is none."""
    while isinstance(node, Node) and node.op == "call_method" and node.target in _VIEWS:
        node = node.args[0]
        if isinstance(node, Node) and len(node.users) > 1:
            return None
    return node if isinstance(node, Node) and node.target in {F.linear, torch.addmm} else None


def _given(product: Node) -> tuple[Any, Any, Any]:
    """Give input, weight and bias; None for a bias that there is not, or for all, with factors."""
    if product.target is F.linear:
        given: dict[str, Any] = {
            **dict(zip(_LINEAR, product.args, strict=False)),
            **product.kwargs,
        }
        return given["input"], given["weight"], given.get("bias")
    if len(product.args) != 3 or product.kwargs:  # noqa: PLR2004 (without factors)
        return None, None, None
    bias, x, weight = product.args
    return x, weight, bias


# 2. Whether it is taken


def _refusal(product: Node, result: Any) -> str | None:
    """Say why a product is left as it is; None where it takes an activation."""
    *operands, bias = _given(product)
    given = operands if bias is None else [*operands, bias]
    if not all(is_ordinary(value_of(x)) for x in (*given, product)):
        return "it is a product with factors, or of no ordinary tensors"
    x, weight, *biases = map(value_of, given)
    value, sizes = value_of(product), [n for y in (weight, *biases) for n in y.shape]
    where = value.device.type
    reasons = {
        "a gradient is wanted": value.requires_grad,
        f"it runs on {where}: the epilogue is cuBLASLt's": where not in DEVICES or _IS_HIP,
        f"it is of {value.dtype}: it pays in 16 bits": value.dtype not in DTYPES,
        "the activation has another dtype": result.dtype != value.dtype,
        "its input is no matrix": x.dim() < _MATRIX,
        "its bias is no vector": any(y.dim() != 1 for y in biases),
        "its weight is no matrix": weight.dim() != _MATRIX,
        "the size of its weight is a symbol": not all(isinstance(n, int) for n in sizes),
        "its sizes are not in eights": any(isinstance(n, int) and n % EIGHTS for n in sizes),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


# 3. What takes its place


def _rewrite(layer: _Layer, zeros: _Zeros) -> None:
    place = layer.product
    bias = zeros.bias_of(layer) if layer.bias is None else layer.bias
    before, dtype = place.prev, value_of(place).dtype  # the zeros may be the last thing before it
    x, weight, bias = (cast_before(place, y, dtype) for y in (layer.x, layer.weight, bias))
    if place.target is F.linear:
        weight = call_before(place, _ATEN.t.default, weight)
    if value_of(x).dim() > _MATRIX:
        x = call_before(place, _ATEN.reshape.default, x, [-1, value_of(weight).shape[0]])
    operator_ = _ATEN._addmm_activation.default  # noqa: SLF001 (its name)
    made = call_before(place, operator_, bias, x, weight, use_gelu=layer.is_gelu)
    if value_of(place).dim() > _MATRIX:
        made = call_before(place, _ATEN.reshape.default, made, list(_sizes(place, layer.x)))
    if layout(value_of(made)) != layout(value_of(place)):
        erase_between(before, place)
        raise UnfitError("its result would be laid out otherwise")
    activated = layer.activation.all_input_nodes[0]
    exchange(layer.activation, activated)
    exchange(place, made)


def _sizes(product: Node, x: Node) -> Iterator[Any]:
    """Give the sizes of a result: numbers, or nodes where they are symbols."""
    for dim, size in enumerate(value_of(product).shape):
        is_known = isinstance(size, int)
        yield size if is_known else call_before(product, _ATEN.sym_size.int, x, dim)
