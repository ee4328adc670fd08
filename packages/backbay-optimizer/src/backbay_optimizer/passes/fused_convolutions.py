"""Fuse convolution, batch norm, a sum and ReLU into one call of cuDNN's, in inference on CUDA.

::

    before:  F.relu(F.batch_norm(torch.conv2d(x, weight), mean, var, scale, shift) + other)
    after:   torch.ops.backbay.convolution_relu(x, folded_weight, folded_bias, other)

Inductor never calls cuDNN's fused form: it writes what the convolution gives, and reads it again
for what follows. The batch norm's numbers are folded into weight and bias in the graph, in every
call, in float32 and rounded once: parameters may change between calls. That costs as much as a copy
of the weights, so it is done where the result is the larger by far.

Without a ReLU nothing is won: Inductor adds a bias in a kernel of its own, which can as well
compute the batch norm. Left alone is, too: what is laid out with its channels first, for which
Inductor chooses a layout by itself; several groups, and channels not in eights, for which cuDNN has
slower engines or none; a batch norm in float16, where folded weights may vanish.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import disturbed
from backbay.graph.layouts import Layouts, kind
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, cast_before, layout, put_before, replace_node
from backbay.graph.values import are_numbers, computed, is_ordinary, state_at, value_of
from backbay.kit.passes import EIGHTS, NotApplicable, Pass, PassContext, Requires
from backbay_optimizer.kernels import folded_batch_norm
from backbay_optimizer.kernels import fused_convolution as kernel
from backbay_optimizer.passes import convolutions, folded_norms
from backbay_optimizer.passes.convolutions import Convolution
from backbay_optimizer.passes.folded_norms import Norm, put_folded

LAUNCH = 3 * 2**20
"""Elements that a result has at least, and one whose weights are folded in every call more than its
weights: what is not written and read again then takes longer than a kernel's launch of 3
microseconds, or than folding. Arithmetic for an H200, at 4.25 TB/s and two bytes an element."""
FOLDING = 8 * 2**20
"""Elements that all results of folded convolutions have at least more than their weights: all
foldings of one call are two kernels, which take 3 to 5 microseconds however little they do.
Measured on an H200: one convolution of 6.4 million results was 0.94 to 1.11 times as fast as
Inductor's, one of 12.8 million 1.16 times (``benchmarks/patterns.py``)."""

_ATEN = torch.ops.aten
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_SUMS = (operator.add, torch.add, "add")
_SUMS_IN_PLACE = (operator.iadd, "add_")
_NUMBERS = ("running_mean", "running_var", "weight", "bias")
_BATCH_NORM = ("input", *_NUMBERS, "training", "momentum", "eps")


@dataclass(frozen=True, kw_only=True)
class _Region:
    """What becomes one call, from the convolution to the ReLU."""

    convolution: Convolution
    norm: Mapping[str, Any] | None
    """Arguments of the batch norm, where there is one."""
    other: Node | None
    """What is added."""
    inside: tuple[Node, ...]
    """All nodes, the last first."""

    @property
    def node(self) -> Node:
        """Where it ends, and the call will stand."""
        return self.inside[0]

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        computes_in: torch.dtype = value_of(self.convolution.node).dtype
        return computes_in

    @property
    def reads(self) -> Iterator[Node]:
        """What the call reads."""
        found = self.convolution
        numbers = [(self.norm or {}).get(x) for x in _NUMBERS]
        given = (found.x, found.weight, found.bias, self.other, *numbers)
        yield from (x for x in given if isinstance(x, Node))


def _convolved(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, *how: Any
) -> torch.Tensor:
    weight = folded_batch_norm.weight_like(weight, dtype)
    bias = None if bias is None else bias.to(dtype)
    return kernel.convolved(x.to(dtype), weight, bias, *how)


@dataclass(frozen=True, kw_only=True)
class FusedConvolutions(Pass):
    """Call cuDNN's fused convolution for one with batch norm, sum and ReLU; for CUDA."""

    summary = "on CUDA, convolution, batch norm, sum and ReLU are one call, in inference"
    requires = Requires(
        devices=("cuda",),
        because="cuDNN is for CUDA",
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        dtypes_because="cuDNN has no fused engine for it",
        inference=True,
    )
    sources = (kernel, folded_batch_norm, convolutions, folded_norms)

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Replace regions; return how many."""
        context.name, layouts = context.name or self.name, Layouts()
        found = self._found(graph_module, context, layouts, folding=True)
        folded = [x.convolution for x in found if x.norm is not None]
        more = sum(value_of(x.node).numel() - value_of(x.weight).numel() for x in folded)
        is_free = context.alone or context.is_hoisted or not folded
        if not is_free and more < FOLDING:
            context.near.clear()
            found = self._found(graph_module, context, layouts, folding=False)
        if found:
            _rewrite(found)
            graph_module.recompile()
        return len(found)

    def _found(
        self, graph_module: GraphModule, context: PassContext, layouts: Layouts, *, folding: bool
    ) -> list[_Region]:
        """Return what can be taken, with batch norms or without."""
        gone = set[Node]()  # and so writes nothing any more
        found = list[_Region]()
        for node in graph_module.graph.nodes:
            with context.attempt(node):
                region = _region(node)
                if region is None:
                    continue
                if region.norm is not None and not folding:
                    raise NotApplicable(
                        "folding costs more than all convolutions of the graph save"
                    )
                self._check_values(region)
                _check_norm(region)
                # What the call reads must be, at its end, what it was at its beginning.
                inside = {*gone, *region.inside}
                start = region.convolution.node
                why = disturbed(start, region.node, region.reads, inside=inside)
                if why is not None:
                    raise NotApplicable(why)
                if _laid_out(region, layouts) != kind(value_of(region.node)):
                    raise NotApplicable("its result would be laid out otherwise")
                context.check_profitable(region.inside)
                gone.update(region.inside)
                found.append(region)
        return found

    def _check_values(self, region: _Region) -> None:
        for node in (*region.inside, *region.reads):
            if not is_ordinary(value_of(node)):
                raise NotApplicable(f"{node.name} is not an ordinary tensor that is known")
        result = value_of(region.convolution.node)
        for value in map(value_of, region.inside):
            if value.requires_grad or value.dtype != result.dtype:
                raise NotApplicable("a gradient is wanted, or dtypes differ on the way")
        self.requires.check(result)
        _check_engine(region.convolution)
        if are_numbers(result.shape) and result.numel() < LAUNCH:
            raise NotApplicable(
                f"{result.numel()} results: cuDNN's usual engines are as fast for so few"
            )
        if region.other is not None and layout(value_of(region.other)) != layout(result):
            raise NotApplicable("what is added has another shape, layout or dtype")


fused_convolutions = FusedConvolutions()

# 1. What is found


def _region(relu: Node) -> _Region | None:
    """Go up from a ReLU to the convolution; None where there is none.

    Raises:
        NotApplicable: there is one that can't be taken.
    """
    last = first_input(relu)
    if not is_call(relu, _RELUS) or not isinstance(last, Node):
        return None
    if last.target not in (*_SUMS, *_SUMS_IN_PLACE):
        return _branch(last, None, (relu,))
    if len(last.args) != 2 or last.kwargs:  # noqa: PLR2004 (two terms)
        return None
    one, other = last.args
    # In place, the left term is written: it must be ours.
    terms = [(one, other)] if last.target in _SUMS_IN_PLACE else [(one, other), (other, one)]
    for branch, rest in terms:
        if not isinstance(branch, Node) or not isinstance(rest, Node) or branch is rest:
            continue
        found = _branch(branch, rest, (relu, last))
        if found is not None:
            return found
    return None


def _branch(node: Node, other: Node | None, after: tuple[Node, ...]) -> _Region | None:
    norm: dict[str, Any] | None = None
    inside = after
    if node.target is F.batch_norm:
        norm = bound(node, _BATCH_NORM)
        inside = (*inside, node)
        node = norm["input"]
    if not is_call(node, convolutions.IMAGES):
        return None
    inside = (*inside, node)
    for each in inside[1:]:
        if len(each.users) > 1:
            raise NotApplicable(f"{each.name}, inside it, is used elsewhere, too")
    return _Region(convolution=Convolution.of(node), norm=norm, other=other, inside=inside)


# 2. Whether it is taken


def _laid_out(region: _Region, layouts: Layouts) -> tuple[Any, ...] | None:
    """Return how the call's result is laid out."""
    found, norm = region.convolution, region.norm
    bias = found.bias if norm is None else norm["running_mean"]
    given = [value_of(x) for x in (found.x, found.weight, bias)]
    with state_at(region.node):
        return layouts.of(_convolved, *given, region.dtype, *found.how)


def _check_engine(found: Convolution) -> None:
    result, channels = value_of(found.node), tuple(value_of(found.weight).shape[:2])
    if not are_numbers(value_of(found.weight).shape):
        raise NotApplicable("the size of its weight is a symbol")
    if found.groups != 1 or any(n % EIGHTS for n in channels):
        raise NotApplicable(f"{channels} channels in {found.groups} groups: they are not in eights")
    # By strides: of one pixel, the channels are last and first, and the layout is not told.
    if result.stride()[1] != 1 or str(result.stride()[3]) != str(result.shape[1]):
        raise NotApplicable("its channels are not last: Inductor chooses a layout by itself")


def _check_norm(region: _Region) -> None:
    norm, found = region.norm, region.convolution
    if norm is None:
        return
    if norm.get("training", False) is not False:
        raise NotApplicable("the batch norm is training, or may be")
    if norm.get("running_mean") is None or norm.get("running_var") is None:
        raise NotApplicable("the batch norm has no statistics")
    weight, result = value_of(found.weight), value_of(found.node)
    if result.dtype == torch.float16:
        raise NotApplicable("weights that are folded with a batch norm may vanish in float16")
    if not all(isinstance(n, int | float) for n in (*result.shape, norm.get("eps", 0.0))):
        raise NotApplicable("a size or eps is a symbol: whether folding pays is not known")
    if result.numel() < weight.numel() + LAUNCH:
        raise NotApplicable(
            f"{result.numel()} results, {weight.numel()} weights: folding costs more"
        )


# 3. What takes its place


def _rewrite(regions: Sequence[_Region]) -> None:
    norms = [_norm(x, **x.norm) for x in regions if x.norm is not None]
    folded = iter(put_folded(norms))
    made = [_put(x, _as_they_are(x) if x.norm is None else next(folded)) for x in regions]
    for region, call in zip(regions, made, strict=True):  # once all read what is there now
        replace_node(region.node, call)
        for node in region.inside[1:]:
            node.graph.erase_node(node)


def _put(region: _Region, how: tuple[Node, Node | None]) -> Node:
    found, place = region.convolution, region.node
    x = cast_before(place, found.x, region.dtype)
    given, value = (x, *how, region.other, *found.how), value_of(place)
    if are_numbers(value.shape):  # laid out so, as was found: the operator need not be asked
        value = computed(torch.empty_like, value)
    return put_before(place, value, kernel.OPERATOR, *given)


def _as_they_are(region: _Region) -> tuple[Node, Node | None]:
    """Return the convolution's weight and bias."""
    found, place = region.convolution, region.node
    weight = cast_before(place, found.weight, region.dtype)
    weight = call_before(place, _ATEN.contiguous.default, weight, memory_format=torch.channels_last)
    return weight, None if found.bias is None else cast_before(place, found.bias, region.dtype)


def _norm(region: _Region, *, eps: float = 1e-5, **given: Any) -> Norm:
    """Return what is folded."""
    numbers: dict[str, Any] = {x: given.get(x) for x in _NUMBERS}
    found, place = region.convolution, region.node
    return Norm(convolution=found, place=place, dtype=region.dtype, eps=float(eps), **numbers)
