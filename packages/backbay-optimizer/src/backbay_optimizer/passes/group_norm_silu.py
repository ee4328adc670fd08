"""Compute group norm and SiLU in one kernel, with channels last from convolution to convolution.

::

    before:  F.silu(F.group_norm(torch.conv2d(x, weight, bias), groups, scale, offset))
    after:   torch.ops.backbay.group_norm_silu(torch.conv2d(x, weight), scale, offset, groups, ...,
                 shift=bias)[0]

Inductor takes the statistics of a group norm with channels last at a tenth of the bandwidth of
memory, and the fast engines of cuDNN want channels last. The bias of the convolution, and a time
step's embedding, cost nothing in the kernel, and a pass over memory elsewhere. The kernel also adds
a block's residual, and writes the sum for other readers. A norm without SiLU is computed in it if
it would be written to memory anyway.

A kernel's layout is fixed when its graph is traced, and on CUDA eager's group norm gives channels
first, whatever it is given. So the pass also moves the layout: what is between the norms, and does
not care, has its channels last, and what cares, or leaves the graph, gets a copy in the layout that
it had. In a graph with channels first, convolutions begin with channels last. Pixels become tokens
by a view then, and what copied tokens to have channels first again copies nothing. No layout moves
where copies move more than a quarter of what the norms read, or what would have another layout may
be written to. Norms whose kernels pay alone are then computed by them with every layout as it
was, in graphs without convolutions: what reads or makes images for those, Inductor lays out anew.
"""

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory, disturbed
from backbay.graph.effects import sets_a_mode
from backbay.graph.match import is_call
from backbay.graph.rewrite import bound, call_before, cast_before, layout, replace_node
from backbay.graph.values import (
    are_numbers,
    is_ordinary,
    is_recorded,
    propagate,
    refresh,
    value_of,
)
from backbay.kit.passes import NotApplicable, Pass, PassContext, Requires
from backbay_optimizer.kernels import conditions, images
from backbay_optimizer.kernels import group_norm_silu as kernel
from backbay_optimizer.passes import convolutions, group_norm_layouts, memory_readers
from backbay_optimizer.passes.convolutions import Convolution
from backbay_optimizer.passes.group_norm_layouts import Layouts, Site, is_last, lay_out
from backbay_optimizer.passes.memory_readers import is_of_ours, is_read_from_memory, memory_of

COPIED = 4
"""Elements that norms read for each that is copied from one layout to the other, at least."""

_ATEN = torch.ops.aten
_IMAGE = 4
_NORM = ("input", "num_groups", "weight", "bias", "eps")


@dataclass(frozen=True, kw_only=True)
class GroupNormSilu(Pass):
    """Compute group norm and SiLU in one kernel, with channels last between convolutions."""

    summary = "on CUDA, group norm and SiLU are one kernel, with channels last around it"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    sources = (
        kernel,
        conditions.device_code(kernel),
        conditions,
        convolutions,
        group_norm_layouts,
        images,
        memory_readers,
    )

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite all sites of a graph, or none; return how many were."""
        norms = graph_module.graph.find_nodes(op="call_function", target=F.group_norm)
        if not norms:
            return 0
        # In place, they write what they alone read.
        activations = {x for norm in norms if (x := _activation(norm)) is not None}
        memory = Memory(graph_module.graph, besides=activations)
        sites = {x.node: x for x in self._sites(norms, memory, context)}
        if not sites:
            return 0
        fused: list[Node] = []
        with context.attempt(next(iter(sites))):
            try:
                found = _planned(graph_module, sites, memory)
            except NotApplicable as reason:
                found = _unmoved(graph_module, sites, memory, reason)
            fired = {x: None for s in found.sites.values() for x in (s.norm, s.node)}
            context.check_profitable([*fired])
            _rewrite(found)
            graph_module.recompile()
            fused = [*found.sites]
        return len(fused)

    def _sites(self, norms: Iterable[Node], memory: Memory, context: PassContext) -> Iterator[Site]:
        for norm in norms:
            with context.attempt(norm):
                yield self._site(norm, memory)

    def _site(self, norm: Node, memory: Memory) -> Site:
        node = _result(norm)
        given = bound(norm, _NORM)
        x, value = given["input"], value_of(node)
        self.requires.check(value)
        if not is_ordinary(value_of(x)) or value_of(x).dtype != value.dtype:
            raise NotApplicable("it has another dtype than what it normalises")
        if value.dim() != _IMAGE or not are_numbers(value.shape):
            raise NotApplicable("it is no batch of images, or its size is a symbol")
        if reason := kernel.pays(value_of(x), given["num_groups"]):
            raise NotApplicable(reason)
        if reason := _disturbance(norm, node, norm.all_input_nodes, memory):
            raise NotApplicable(reason)
        return Site(
            node=node,
            norm=norm,
            x=x,
            groups=given["num_groups"],
            weight=given.get("weight"),
            bias=given.get("bias"),
            eps=given.get("eps", 1e-5),
        )


def _disturbance(start: Node, end: Node, read: Iterable[Node], memory: Memory) -> str | None:
    """Return why values can't be read at a later place, and by its backward, or None."""
    if value_of(end).requires_grad and any(map(memory.mutated, read)):
        return "something writes what it reads, and backward may read it after that"
    return disturbed(start, end, read)


def _activation(norm: Node) -> Node | None:
    """Return the SiLU that alone reads a norm, or None."""
    alone = next(iter(norm.users)) if len(norm.users) == 1 else None
    return alone if alone is not None and alone.target is F.silu else None


def _result(norm: Node) -> Node:
    """Return what the kernel computes: the SiLU of a norm, or the norm."""
    activation = _activation(norm)
    if activation is not None:
        return activation
    if any(x.target is F.silu for x in norm.users):
        raise NotApplicable(f"{norm.name}, which is activated, is used elsewhere, too")
    if not is_read_from_memory(norm):
        raise NotApplicable("neither SiLU follows it nor what reads it from memory")
    return norm


group_norm_silu = GroupNormSilu()


# 1. Which layouts there will be


def _planned(graph_module: GraphModule, sites: dict[Node, Site], memory: Memory) -> Layouts:
    """Return what all values become, by a walk over the graph that changes nothing.

    Raises:
        NotApplicable: it would not pay, or what would have another layout is written to.
    """
    found = Layouts(memory=memory)
    activated = {x.norm for x in sites.values() if x.norm is not x.node}
    found.begins = any(value_of(x.x).is_contiguous() for x in sites.values())
    for node in graph_module.graph.nodes:
        if node not in activated:
            lay_out(found, node, sites.get(node))
    largest = max((value_of(x.x).numel() for x in found.sites.values()), default=0)
    if found.sites and largest < kernel.PAYS_FROM:
        raise NotApplicable(f"{largest} elements: below {kernel.PAYS_FROM} it was not faster")
    if not found.sites:
        raise NotApplicable("channels are first, and no convolution is before it")
    read = sum(value_of(x.x).numel() for x in found.sites.values())
    if read < COPIED * found.copied:
        raise NotApplicable(
            f"{len(found.sites)} norms read {read} elements, and {found.copied} would be copied"
        )
    return found


def _unmoved(
    graph_module: GraphModule, sites: dict[Node, Site], memory: Memory, moves: NotApplicable
) -> Layouts:
    """Return the sites that pay with all layouts as they are.

    Args:
        graph_module: what is rewritten.
        sites: all of its group norms that the kernels take.
        memory: of its graph.
        moves: why layouts can't move.

    Raises:
        NotApplicable: there is none.
    """
    if any(is_call(x, convolutions.IMAGES) for x in graph_module.graph.nodes):
        raise moves
    # What it takes to add residuals was measured with channels last alone.
    found, reasons = Layouts(memory=memory, adds=False), [str(moves)]
    for node, site in sites.items():
        trains = value_of(node).requires_grad
        if reason := kernel.pays_alone(value_of(site.x), site.groups, trains=trains):
            reasons.append(reason)
        elif not is_read_from_memory(node):
            reasons.append("what reads it would be fused with it")
        else:
            found.sites[node] = site
    if not found.sites:
        raise NotApplicable("; ".join(dict.fromkeys(reasons)))
    return found


# 2. What takes their place


def _rewrite(found: Layouts) -> None:
    graph = next(iter(found.sites)).graph
    modes = {x for x in graph.nodes if sets_a_mode(x)}
    made: dict[tuple[Node, torch.memory_format, bool], Node] = {}
    wanted: dict[Node, list[tuple[Node, torch.memory_format]]] = {}
    for reader, read, form in found.copies:
        wanted.setdefault(reader, []).append((read, form))
    fused: dict[Node, Node] = {}
    order = {x: n for n, x in enumerate(graph.nodes)}
    for node in sorted({*found.values, *found.sites, *wanted}, key=order.__getitem__):
        for read, form in wanted.get(node, []):
            here = fused.get(read, read)
            key = read, form, is_recorded(node)  # one that was made without gradients has none
            known = made.get(key)
            if known is None or disturbed(known, node, [here], inside=modes):
                known = call_before(node, _ATEN.contiguous.default, here, memory_format=form)
            made[key] = known
            node.replace_input_with(here, known)
            refresh(read, known)
        if node in found.sites:
            fused |= _fuse(found.sites[node], found)
        elif node in found.values:
            if node.target == "contiguous":
                node.kwargs = {"memory_format": torch.channels_last}
            propagate(node, node)


def _fuse(site: Site, found: Layouts) -> dict[Node, Node]:
    """Put the kernel in the place of a norm, its SiLU, and the sum of images that it reads.

    Returns:
        The new nodes, by the result and the sum that they replace.
    """
    assert callable(kernel.group_norm_silu)  # registers it: torch.ops has it only after that
    memory, graph, shift = found.memory, site.norm.graph, None
    read_last, written_last = (is_last(found.of(x)) for x in (site.x, site.node))
    last = None if read_last == written_last else written_last
    read = bound(site.norm, _NORM)["input"]
    total = _summed(read, site, memory) if last is None and found.adds else None
    if total is None:
        x, shift = _without_step(read, site.node, memory)
        images = [x]
    else:
        images = total.all_input_nodes
    bare = [_without_bias(x, site.node, memory) for x in images]
    shift = _sum(site.norm, shift, *(bias for bias, _ in bare))
    activates = site.node is not site.norm
    how = (site.weight, site.bias, site.groups, site.eps, activates, shift, last)
    operators = torch.ops.backbay
    forward = operators.group_norm_silu if total is None else operators.add_group_norm_silu
    call = call_before(site.node, forward.default, *(x for _, x in bare), *how)
    placed = {site.node: call_before(site.node, operator.getitem, call, 0)}
    if total is not None:
        placed[read] = call_before(site.node, operator.getitem, call, 1)
    for old, new in placed.items():
        memory.merge(old, new)
    _put(site.node, placed[site.node])
    if activates:
        graph.erase_node(site.norm)
    if total is not None:
        replace_node(read, placed[read])
        if total is not read:
            graph.erase_node(total)
    return placed


def _put(old: Node, new: Node) -> None:
    """Use a result where another was used, whose layout may have been another one.

    What views it is then to read a copy in the old layout, and may not be able to view the new one.
    """
    if layout(value_of(old)) == layout(value_of(new)):
        replace_node(old, new)
        return
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _summed(read: Node, site: Site, memory: Memory) -> Node | None:
    """Return the sum of two images that a norm reads, if its kernel should add them.

    Args:
        read: what the norm reads; it will be there only after the kernel.
        site: where that is.
        memory: of the graph.
    """
    total = _undivided(read)
    if not is_call(total, (operator.add, torch.add)) or total.kwargs:
        return None
    images, like = total.all_input_nodes, layout(value_of(read))
    before = [x for x in read.users if x < site.node and x is not site.norm]
    if before or len(images) != len(total.args):
        return None
    if any(not is_ordinary(value_of(x)) or layout(value_of(x)) != like for x in images):
        return None
    if _disturbance(total, site.node, images, memory):
        return None
    return total if all(_is_stored(x, site.node, memory) for x in images) else None


def _undivided(node: Node) -> Node:
    """Return what a node divides by one; diffusers scales each sum so."""
    if is_call(node, (operator.truediv,)) and node.args[1] == 1:
        (read,) = node.all_input_nodes
        if len(read.users) == 1 and value_of(read).dtype == value_of(node).dtype:
            return read
    return node


def _is_stored(node: Node, place: Node, memory: Memory) -> bool:
    """Return whether an image is written to memory anyway, or its bias alone is still to be added.

    Otherwise the kernel that computes it could do the addition.
    """
    if is_of_ours(node) or is_read_from_memory(node):
        return True
    stored = memory_of(node)
    if stored is None or not is_call(stored, convolutions.IMAGES):
        return stored is not None
    with contextlib.suppress(NotApplicable):
        bias = Convolution.of(stored).bias
        movable = stored is node and len(node.users) == 1
        return bias is None or (movable and not _disturbance(node, place, [bias], memory))
    return False


def _without_step(node: Node, place: Node, memory: Memory) -> tuple[Node, Node | None]:
    """Return an image, and the time step's embedding, (N, C), that is added to it for the norm.

    Args:
        node: what is normalised.
        place: where both are read instead.
        memory: of the graph.
    """
    if not is_call(node, (operator.add, torch.add)) or len(node.users) > 1 or node.kwargs:
        return node, None
    if _disturbance(node, place, node.all_input_nodes, memory):
        return node, None
    image, step = node.args
    if not isinstance(image, Node) or not isinstance(step, Node):
        return node, None
    value, whole = value_of(step), value_of(node)
    samples, channels = whole.shape[:2]
    if not is_ordinary(value) or value.dtype != whole.dtype:
        return node, None
    if value.shape != (samples, channels, 1, 1) or layout(value_of(image)) != layout(whole):
        return node, None
    return image, call_before(node, _ATEN.reshape.default, step, [samples, channels])


def _sum(place: Node, *terms: Node | None) -> Node | None:
    """Add what is there of biases and an embedding, without rounding."""
    there = [x for x in terms if x is not None]
    if len(there) <= 1:
        return there[0] if there else None
    wide = (cast_before(place, x, torch.float32) for x in there)
    return functools.reduce(lambda x, y: call_before(place, _ATEN.add.Tensor, x, y), wide)


def _without_bias(node: Node, place: Node, memory: Memory) -> tuple[Node | None, Node]:
    """Return a convolution's bias, and one without; a padding in words stays as it is.

    Args:
        node: the convolution; what is none, or has other readers, stays, too.
        place: where its bias is read instead.
        memory: of the graph.
    """
    if not is_call(node, convolutions.IMAGES) or len(node.users) > 1:
        return None, node
    try:
        read = Convolution.of(node)
    except NotApplicable:
        return None, node
    if read.bias is None or _disturbance(node, place, [read.bias], memory):
        return None, node
    bare = call_before(node, node.target, read.x, read.weight, None, *read.how)
    replace_node(node, bare)
    return read.bias, bare
