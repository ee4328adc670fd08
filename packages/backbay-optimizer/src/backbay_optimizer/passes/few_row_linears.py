"""Compute linear layers of few rows that read the same in one kernel, on CUDA, in inference.

::

    before:  q, k = F.linear(x, wq), F.linear(x, wk)                    # x has 2 to 512 rows
    after:   q, k = torch.ops.backbay.few_row_linears(x, [wq, wk], [None, None])

    before:  F.silu(F.linear(x, gate)) * F.linear(x, up)
    after:   torch.ops.backbay.gated_linears(x, gate, up, None, None, "silu")

A step of generation for a few sequences reads all weights and computes little. A launch for each
layer leaves the memory idle at its beginning and its end, and the smaller layers (keys and values
of grouped queries) never fill the GPU. Weights are read where they are: `horizontal_fusion`, which
makes one layer of them, needs a copy of all. A gate and what it gates are not written at all.

One row is `one_row_linears`'. Layers between which another one works are not put together: a
decoder's layers all read what its encoder gave, and their keys and values would be kept from the
first to the last.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import aliases
from backbay.graph.aliases import disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, cast_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import few_row_linears as kernel

_LINEAR = ("input", "weight", "bias")
_FACTORS = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
_MATRIX = 2
_PAIR = 2


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A linear layer."""

    node: Node
    x: Any
    weight: Any
    bias: Any

    @classmethod
    def of(cls, node: Node) -> "_Layer":
        given = bound(node, _LINEAR)
        bias = given.get("bias")
        return cls(node=node, x=given.get("input"), weight=given.get("weight"), bias=bias)

    @property
    def reads(self) -> list[Any]:
        """What it reads."""
        return [x for x in (self.x, self.weight, self.bias) if x is not None]


@dataclass(frozen=True, kw_only=True)
class _Site:
    """Layers that read the same."""

    node: Node
    """Where the call will stand."""
    layers: Sequence[_Layer]
    activation: str = ""
    """Of a gate, the first of two layers; empty where none is."""
    inside: Sequence[Node]
    """All that is computed."""


@dataclass(frozen=True, kw_only=True)
class FewRowLinears(Rewrite[_Site]):
    """Compute linear layers of few rows in one kernel where they read the same; for CUDA."""

    summary = (
        "on CUDA, linear layers of few rows that read the same, or a gate and what it gates, are "
        "one kernel, in inference"
    )
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
        inference=True,
    )
    sources = (kernel, conditions.device_code(kernel), conditions, aliases)

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[_Site]:  # noqa: ARG002 (of those that ask)
        """Yield gates with what they gate, then what is left of layers that read the same."""
        graph = graph_module.graph
        for node in [x for x in graph.nodes if is_call(x, _FACTORS)]:
            site = None if node._erased else _gated(node)  # noqa: SLF001 (nothing else tells)
            if site is not None:
                yield site
        for run in _runs(graph):
            # Read again: an input may be a result of layers that were put together since.
            yield _Site(node=run[0], layers=[_Layer.of(x) for x in run], inside=run)

    def replacement(self, site: _Site, context: PassContext) -> Replacement:  # noqa: ARG002 (of those that ask)
        """Return one call for all layers, with its results."""
        value = value_of(site.node)
        for layer in site.layers:
            self.requires.check(value_of(layer.node))
            _check(layer, site.node)
        if any(value_of(x).dtype != value.dtype for x in site.inside):
            raise NotApplicable("dtypes differ on the way")
        rows = math.prod(value_of(site.layers[0].x).shape[:-1])
        sizes = [tuple(value_of(x.weight).shape) for x in site.layers]
        if site.activation and sizes[0] != sizes[1]:
            raise NotApplicable("the gate is of another size than what it gates")
        reason = kernel.pays(value, rows, sizes, is_gated=bool(site.activation))
        if reason is not None:
            raise NotApplicable(reason)
        reads = [y for x in site.layers for y in x.reads]
        why = disturbed(min(site.inside), max(site.inside), reads, inside={*site.inside})
        if why is not None:
            raise NotApplicable(why)
        return _put_gated(site) if site.activation else _put(site)


few_row_linears = FewRowLinears()


# 1. What is found


def _gated(node: Node) -> _Site | None:
    """Return the layers whose results are multiplied, the first behind an activation, or None."""
    if node.kwargs or len(node.args) != _PAIR:
        return None
    pair: Sequence[Any] = node.args
    for active, other in (pair, pair[::-1]):
        activation = _activation(active)
        if not activation or not is_call(other, (F.linear,)):
            continue
        gate, up = _Layer.of(first_input(active)), _Layer.of(other)
        inside = [gate.node, active, up.node]
        if gate.x is up.x and all(len(y.users) == 1 for y in inside):
            inside.append(node)
            return _Site(node=node, layers=(gate, up), activation=activation, inside=inside)
    return None


def _activation(node: Any) -> str:
    """Return the name of an activation of a linear layer; empty for anything else."""
    if not is_call(node, (F.silu, F.gelu)) or not is_call(first_input(node), (F.linear,)):
        return ""
    if node.target is F.silu:
        return "silu"
    return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else ""


def _runs(graph: Graph) -> list[list[Node]]:
    """Return layers of one input that follow each other, as many as a kernel takes."""
    runs: dict[Any, list[list[Node]]] = {}
    last = None
    for node in graph.find_nodes(op="call_function", target=F.linear):
        x = _Layer.of(node).x
        if x is last and len(runs[x][-1]) < kernel.LAYERS:
            runs[x][-1].append(node)
        else:
            runs.setdefault(x, []).append([node])
        last = x
    return [run for found in runs.values() for run in found if len(run) > 1]


# 2. Whether it is taken


def _check(layer: _Layer, place: Node) -> None:
    """Check that the kernel can read what a layer reads, where the call will stand."""
    if not all(isinstance(y, Node) and is_ordinary(value_of(y)) for y in layer.reads):
        raise NotApplicable("it reads what is no ordinary tensor that is known")
    x, weight, *bias = (value_of(y) for y in layer.reads)
    if not are_numbers((*x.shape, *weight.shape, *weight.stride())):
        raise NotApplicable("its size is a symbol: whether it pays is not known")
    if weight.dim() != _MATRIX or not weight.is_contiguous():
        raise NotApplicable("its weight is no matrix, or its rows do not lie one behind the other")
    if any(y.shape != weight.shape[:1] for y in bias):
        raise NotApplicable("its bias is not one number for each feature")
    if not all(y < place for y in layer.reads):
        raise NotApplicable("what it reads is made behind the first of the layers")


# 3. What takes its place


def _put(site: _Site) -> Replacement:
    """Put a call where the first layer is."""
    assert callable(kernel.few_row_linears)  # registers it: torch.ops has it only after that
    x, weights, biases = _given(site)
    call = call_before(site.node, torch.ops.backbay.few_row_linears.default, x, weights, biases)
    parts = [call_before(site.node, operator.getitem, call, n) for n in range(len(weights))]
    return Replacement(dict(zip(site.inside, parts, strict=True)), site.inside)


def _put_gated(site: _Site) -> Replacement:
    """Put a call where the gate has met what it gates."""
    assert callable(kernel.gated_linears)  # likewise
    x, weights, biases = _given(site)
    given = (x, *weights, *biases, site.activation)
    made = call_before(site.node, torch.ops.backbay.gated_linears.default, *given)
    return Replacement({site.node: made}, site.inside)


def _given(site: _Site) -> tuple[Node, list[Node], list[Node | None]]:
    """Return input, weights and biases; under autocast they are rounded first."""
    place, dtype = site.node, value_of(site.node).dtype
    x = cast_before(place, site.layers[0].x, dtype)
    weights = [cast_before(place, y.weight, dtype) for y in site.layers]
    biases = [None if y.bias is None else cast_before(place, y.bias, dtype) for y in site.layers]
    return x, weights, biases
