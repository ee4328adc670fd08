"""Compute products and what follows them in one Triton kernel, where cuBLASLt and cuDNN can't.

::

    before:  F.gelu(F.linear(x, weight, bias))
    after:   torch.ops.backbay.linear_epilogue(x, weight, bias, "gelu")

    before:  F.silu(F.batch_norm(torch.conv2d(x, weight), mean, var, scale, shift))    # 1 by 1
    after:   torch.ops.backbay.linear_epilogue(x.permute(0, 2, 3, 1), weight.view(...), None,
                 "silu", mean, var, scale, shift, eps).permute(0, 3, 1, 2)

So it is with GELU by ``erf`` and SiLU, after linear layers; with a layer scale and a residual after
them, as ConvNeXt has; and with convolutions of one pixel whose channels are last, if a batch norm
follows: with SiLU, hard-swish, GELU or a residual after that, and before the convolution the gate
of squeeze-and-excitation. Inductor writes what the product gives, and reads it again. A batch norm
is not folded into weights: its numbers are read in every call, and nothing is rounded for it. What
is gated is mostly a batch norm with an activation, which the gate is made of as well, by a mean:
the kernel computes it once more, and it is not written at all.

Only where something reads the result from memory anyway: a product, a convolution, attention, or
the caller. Anything else Inductor computes in one kernel with it. And only of the sizes for which
the kernel was measured to be faster.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.aliases import disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, cast_before, layout
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import (
    NotApplicable,
    PassContext,
    Replacement,
    Requires,
    Rewrite,
)
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import linear_epilogue as kernel
from backbay_optimizer.passes import convolutions, memory_readers
from backbay_optimizer.passes.convolutions import Convolution
from backbay_optimizer.passes.memory_readers import is_read_from_memory

_ATEN = torch.ops.aten
_PRODUCTS = (F.linear, *convolutions.IMAGES)
_ACTIVATIONS: dict[Any, str] = {
    F.gelu: "gelu",
    F.silu: "silu",
    F.hardswish: "hardswish",
}
_ENTRIES: dict[Any, str] = {F.silu: "silu", F.hardswish: "hardswish", F.relu: "relu"}
_MEANS = ("mean", torch.mean, F.adaptive_avg_pool2d)
_SUMS = (operator.add, torch.add, "add")
_SUMS_IN_PLACE = (operator.iadd, "add_")
_FACTORS = (operator.mul, torch.mul, "mul")
_FACTORS_IN_PLACE = (operator.imul, "mul_")
_VECTORS = ("running_mean", "running_var", "weight", "bias")
_BATCH_NORM = ("input", *_VECTORS, "training", "momentum", "eps")
_LAST = [0, 3, 1, 2]
"""From (N, H, W, C) to (N, C, H, W)."""
_BINARY = 2


@dataclass(kw_only=True)
class _Site:
    """A product, with what is computed in its kernel."""

    node: Node
    """Where it ends, and the call will stand."""
    x: Node
    weight: Node
    bias: Node | None
    order: list[int] | None
    """How the dimensions of the kernel's result, features last, are permuted; None for not."""
    inside: list[Node]
    """All nodes, the product among them."""
    before: list[Node] = field(default_factory=list)
    """Nodes that it computes again, and that stay for what else reads them."""
    gate: Node | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    """Arguments of a batch norm before the product, whose result others read, too."""
    entry_activation: str = "none"
    norm: dict[str, Any] = field(default_factory=dict)
    """Arguments of the batch norm, where there is one."""
    activation: str = "none"
    scale: Node | None = None
    residual: Node | None = None

    @property
    def reads(self) -> Iterator[Node]:
        """What the call reads."""
        vectors = (norm.get(x) for norm in (self.norm, self.entry) for x in _VECTORS)
        given = (self.x, self.weight, self.bias, self.gate, self.scale, self.residual, *vectors)
        yield from (x for x in given if isinstance(x, Node))


@dataclass(frozen=True, kw_only=True)
class ProductEpilogues(Rewrite[_Site]):
    """Compute products and what follows them in one kernel; for CUDA."""

    summary = (
        "on CUDA, a linear layer with GELU or SiLU, or with layer scale and residual, or a 1x1 "
        "convolution with batch norm, is one kernel, in inference"
    )
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="in single precision cuBLAS is faster",
        inference=True,
    )
    sources = (
        kernel,
        conditions.device_code(kernel),
        conditions,
        convolutions,
        effects,
        memory_readers,
    )

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[_Site]:
        """Yield products that something follows which cuBLASLt and cuDNN don't compute."""
        for node in [x for x in graph_module.graph.nodes if is_call(x, _PRODUCTS)]:
            if node._erased:  # noqa: SLF001 (nothing else tells)
                continue
            with context.attempt(node):
                site = _linear(node) if node.target is F.linear else _convolution(node)
                if site is not None:
                    yield site

    def replacement(self, site: _Site, context: PassContext) -> Replacement:  # noqa: ARG002 (of those that ask)
        """Return one call for the product and what follows it."""
        value, start = value_of(site.node), min([*site.inside, *site.before])
        if not all(is_ordinary(value_of(x)) for x in (*site.reads, *site.inside)):
            raise NotApplicable("it reads or computes what is no ordinary tensor that is known")
        if any(value_of(x).dtype != value.dtype for x in (*site.inside, *site.before)):
            raise NotApplicable("dtypes differ on the way")
        columns, inner = value_of(site.weight).shape[:2]
        rows = value_of(site.x).numel() // inner
        steps = {"is_activated": site.activation != "none", "is_gated": site.gate is not None}
        reason = kernel.pays(value, rows, inner, columns, **steps)
        if reason is not None:
            raise NotApplicable(reason)
        if not is_read_from_memory(site.node):
            raise NotApplicable("what reads it is computed with it by Inductor")
        why = disturbed(start, site.node, site.reads, inside={*site.inside})
        if why is not None:
            raise NotApplicable(why)
        return Replacement({site.node: _put(site)}, site.inside)


product_epilogues = ProductEpilogues()


# 1. What is found: products, and the way down from them


def _linear(node: Node) -> _Site | None:
    """Return a linear layer with an activation, or with a layer scale and a residual."""
    given = bound(node, ("input", "weight", "bias"))
    _check_sizes(given["input"], given["weight"])
    weight, bias = value_of(given["weight"]), value_of(given.get("bias"))
    if weight.dim() != _BINARY or (bias is not None and tuple(bias.shape) != weight.shape[:1]):
        raise NotApplicable("its weight is no matrix, or its bias not one number for each feature")
    site = _Site(
        node=node,
        x=given["input"],
        weight=given["weight"],
        bias=given.get("bias"),
        order=None,
        inside=[node],
    )
    after = _next(site, through_views=False)
    if after is not None and after.target in _ACTIVATIONS:
        return _activated(site, after)
    permuted = _next(site, through_views=True)
    if permuted is None or not _scaled(site, permuted) or not _summed(site, _next(site)):
        return None
    return site


def _convolution(node: Node) -> _Site | None:
    """Return a convolution of one pixel with a batch norm and what follows it, or None."""
    weight = value_of(node.args[1] if len(node.args) > 1 else node.kwargs.get("weight"))
    if not isinstance(weight, torch.Tensor) or tuple(weight.shape[2:]) != (1, 1):
        return None
    found = Convolution.of(node)
    if (found.stride, found.padding, found.groups) != ([1, 1], [0, 0], 1):
        return None
    _check_sizes(found.x, found.weight)
    if value_of(found.x).shape[2:].numel() == 1:
        return None  # that is a linear layer of a row for each image
    site = _Site(
        node=node, x=found.x, weight=found.weight, bias=found.bias, order=_LAST, inside=[node]
    )
    norm = _next(site)
    if norm is None or norm.target is not F.batch_norm:
        return None
    _gated(site)
    site.norm = bound(norm, _BATCH_NORM)
    if not _is_inference(site.norm):
        raise NotApplicable("the batch norm is training, or may be, or has no statistics")
    _extend(site, norm)
    after = _next(site)
    if after is not None and after.target in _ACTIVATIONS:
        return _activated(site, after)
    _summed(site, after)
    return site


def _next(site: _Site, *, through_views: bool = False) -> Node | None:
    """Return what alone reads a site's end; a dropout that drops nothing becomes part of it.

    With ``through_views`` so does a permutation of dimensions.
    """
    while len(site.node.users) == 1:
        (user,) = site.node.users
        if effects.is_dropout(user) and not effects.drops(user):
            _extend(site, user)
        elif through_views and site.order is None and is_call(user, ("permute", torch.permute)):
            given: Any = user.kwargs.get("dims", user.args[1:])
            order = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
            if not all(isinstance(n, int) for n in order):
                return None
            site.order = [n % len(order) for n in order]
            _extend(site, user)
        else:
            return user
    return None


def _extend(site: _Site, node: Node) -> None:
    site.inside.append(node)
    site.node = node


def _activated(site: _Site, node: Node) -> _Site | None:
    if node.target is F.gelu and node.kwargs.get("approximate", "none") != "none":
        return None  # that one has an epilogue of cuBLASLt's
    site.activation = _ACTIVATIONS[node.target]
    _extend(site, node)
    return site


def _gated(site: _Site) -> None:
    """Take the gate that scales what a convolution reads, if there is one."""
    node = site.x
    if not is_call(node, _FACTORS) or len(node.users) > 1:
        return
    for x, gate in _operands(node, _FACTORS):
        image, factor = value_of(x), value_of(gate)
        if not is_ordinary(image) or not is_ordinary(factor):
            continue
        wanted = (*image.shape[:2], 1, 1)
        if image.shape == value_of(node).shape and tuple(factor.shape) == wanted:
            site.x, site.gate = x, gate
            site.inside.insert(0, node)
            _entered(site)
            return


def _entered(site: _Site) -> None:
    """Compute batch norm and activation of gated images again, if only means read them as well.

    What makes the gate is such a mean: then nothing needs the images in memory.
    """
    if value_of(site.weight).shape[0] > kernel.ENTERED:
        return
    node, norm = site.x, first_input(site.x) if site.x.target in _ENTRIES else None
    if norm is None or not is_call(norm, (F.batch_norm,)) or len(norm.users) > 1:
        return
    if not all(x in site.inside or is_call(x, _MEANS) for x in node.users):
        return
    given = bound(norm, _BATCH_NORM)
    if any(given.get(x) is None for x in _VECTORS) or not _is_inference(given):
        return
    site.x, site.entry, site.entry_activation = given["input"], given, _ENTRIES[node.target]
    site.before = [norm, node]


def _scaled(site: _Site, node: Node) -> bool:
    """Take a factor for each feature, if that is what a node multiplies by."""
    columns, value = value_of(site.weight).shape[0], value_of(site.node)
    dim = value.dim() - 1 if site.order is None else site.order.index(value.dim() - 1)
    for x, scale in _operands(node, (*_FACTORS, *_FACTORS_IN_PLACE)):
        factor = value_of(scale)
        if x is not site.node or not is_ordinary(factor):
            continue
        sizes = [1] * (value.dim() - factor.dim()) + [*factor.shape]
        if sizes == [columns if n == dim else 1 for n in range(value.dim())]:
            site.scale = scale
            _extend(site, node)
            return True
    return False


def _summed(site: _Site, node: Node | None) -> bool:
    """Take what is added, if it is laid out as the sum."""
    if node is None:
        return False
    for x, other in _operands(node, (*_SUMS, *_SUMS_IN_PLACE)):
        if x is not site.node or x is other or not is_ordinary(value_of(other)):
            continue
        if layout(value_of(other)) == layout(value_of(x)):
            site.residual = other
            _extend(site, node)
            return True
    return False


def _operands(node: Node, targets: tuple[Any, ...]) -> Iterator[tuple[Node, Node]]:
    """Yield both operands in either order; in place only the left one is ours to write."""
    if not is_call(node, targets) or len(node.args) != _BINARY or node.kwargs:
        return
    one, other = node.args
    if isinstance(one, Node) and isinstance(other, Node):
        yield one, other
        if node.target not in {*_SUMS_IN_PLACE, *_FACTORS_IN_PLACE}:
            yield other, one


# 2. Whether it is taken


def _check_sizes(*nodes: Node) -> None:
    if not all(is_ordinary(value_of(x)) for x in nodes):
        raise NotApplicable("it reads what is no ordinary tensor that is known")
    if not are_numbers([n for x in nodes for n in value_of(x).shape]):
        raise NotApplicable("its size is a symbol: whether it pays is not known")
    if not all(value_of(x).numel() for x in nodes):
        raise NotApplicable("it has no elements")


def _is_inference(norm: dict[str, Any]) -> bool:
    """Return whether a batch norm has numbers that no call changes."""
    known = norm.get("running_mean") is not None and norm.get("running_var") is not None
    return known and norm.get("training", False) is False and type(norm.get("eps", 0.0)) is float


# 3. What takes its place


def _put(site: _Site) -> Node:
    assert callable(kernel.linear_epilogue)  # registers it: torch.ops has it only after that
    place, dtype = site.node, value_of(site.node).dtype
    columns, inner = value_of(site.weight).shape[:2]
    x, weight = (cast_before(place, y, dtype) for y in (site.x, site.weight))
    residual, gate, scale = site.residual, site.gate, site.scale
    is_image = value_of(site.weight).dim() > _BINARY
    if is_image:
        weight = call_before(place, _ATEN.reshape.default, weight, [columns, inner])
        x = call_before(place, _ATEN.permute.default, x, [0, 2, 3, 1])
    if gate is not None:
        gate = call_before(place, _ATEN.reshape.default, gate, [-1, inner])
    if scale is not None:
        scale = call_before(place, _ATEN.reshape.default, scale, [columns])
    if residual is not None and site.order is not None:
        inverse = [site.order.index(n) for n in range(len(site.order))]
        residual = call_before(place, _ATEN.permute.default, residual, inverse)
    mean, var, weights, shift = (site.norm.get(x) for x in _VECTORS)
    eps = site.norm.get("eps", 1e-5)
    given = (x, weight, site.bias, site.activation, mean, var, weights or scale, shift, eps)
    operator_ = torch.ops.backbay.linear_epilogue.default
    entry = [site.entry.get(x) for x in _VECTORS]
    how = (*entry, site.entry_activation, site.entry.get("eps", 1e-5))
    made = call_before(place, operator_, *given, residual, gate, *how)
    if site.order is None:
        return made
    return call_before(place, _ATEN.permute.default, made, site.order)
