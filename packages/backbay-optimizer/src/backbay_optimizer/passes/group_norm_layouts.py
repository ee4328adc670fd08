"""Which layout images have around group norms that a kernel computes, and who gets copies.

A norm whose image has channels last gives them last, and so does what follows and does not care.
What cares, or leaves the graph, reads a copy in the layout that it had. Nothing is changed here.
"""

import contextlib
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory
from backbay.graph.effects import drops, is_dropout
from backbay.graph.match import is_call
from backbay.graph.rewrite import layout
from backbay.graph.values import computed, evaluated, is_ordinary, is_recorded, value_of
from backbay.kit.passes import NotApplicable
from backbay_optimizer.passes import convolutions

_IMAGE = 4
_POINTWISE = {
    *(F.silu, F.relu, F.gelu, F.dropout, F.interpolate, torch.sigmoid, torch.relu, torch.nn.SiLU),
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(torch.add, torch.mul, torch.cat, "to"),
}
"""What gives channels last where all that is read has them last."""
_VIEWS = {"permute", "reshape", "view", "flatten", "transpose", torch.permute, torch.flatten}
_READERS = {
    *(F.linear, F.layer_norm, F.group_norm, F.scaled_dot_product_attention),
    *(operator.matmul, torch.matmul, torch.bmm, "matmul"),
}
"""What reads any layout as fast, and mostly gives the same whatever it reads."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A group norm, and a SiLU that alone reads it."""

    node: Node
    """SiLU, or the norm where there is none."""
    norm: Node
    x: Node
    groups: int
    weight: Node | None
    bias: Node | None
    eps: float


@dataclass(kw_only=True)
class Layouts:
    """What a graph's values become, and which of them need copies for whom."""

    memory: Memory
    values: dict[Node, Any] = field(default_factory=dict)
    """Values of what changes its layout, in the order of the graph."""
    sites: dict[Node, Site] = field(default_factory=dict)
    copies: list[tuple[Node, Node, torch.memory_format]] = field(default_factory=list)
    """Who reads, what, and in which layout."""
    begins: bool = False
    """Whether convolutions begin with channels last, since their norms have channels first."""
    adds: bool = True
    """Whether kernels add residuals, too."""

    def of(self, node: Node) -> Any:
        """Return what a node's value will be."""
        return self.values.get(node, value_of(node))

    @property
    def copied(self) -> int:
        """Elements of all copies, but for those that are made anew after a write."""
        return sum(
            value_of(x).numel()
            for x in {(read, form): read for _, read, form in self.copies}.values()
        )


def lay_out(found: Layouts, node: Node, site: Site | None) -> None:
    """Find what one node's value becomes."""
    inputs = [x for x in node.all_input_nodes if x in found.values]
    if site is not None and is_last(found.of(site.x)):
        found.sites[node] = site
        _settle(found, node, computed(torch.empty_like, found.of(site.x)))
    elif site is not None and site.norm is not node:
        _restore(found, site.norm, [site.x] if site.x in found.values else [])
    elif is_call(node, convolutions.IMAGES):
        if inputs or found.begins:
            _follow(found, node, inputs)
    elif _is_copy_to_first(found, node):
        _settle(found, node, found.of(node.all_input_nodes[0]))
    elif inputs and is_call(node, _POINTWISE) and not _draws_as_eager(node):
        _follow(found, node, inputs)
    elif inputs and is_call(node, _VIEWS):
        _view(found, node, inputs)
    elif inputs and not (is_call(node, _READERS) and _is_as_before(found, node)):
        _restore(found, node, inputs)


def _draws_as_eager(node: Node) -> bool:
    """Return whether a node is to draw eager's random numbers, which lie in the order of memory."""
    from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

    return config.fallback_random and is_dropout(node) and drops(node)


def _follow(found: Layouts, node: Node, inputs: list[Node]) -> None:
    """Have a node compute with channels last, if that is what it then gives."""
    value, others, copies = value_of(node), {}, []
    is_convolution = is_call(node, convolutions.IMAGES)
    for x in node.all_input_nodes[:1] if is_convolution else node.all_input_nodes:
        others[x] = given = found.of(x)
        is_image = is_ordinary(given) and given.dim() == _IMAGE and given.shape[2:].numel() > 1
        if is_image and given.is_contiguous() and not is_last(given):
            others[x] = computed(lambda y: y.contiguous(memory_format=torch.channels_last), given)
            copies.append((node, x, torch.channels_last))
    given = evaluated(node, {**found.values, **others})
    if not (is_ordinary(given) and is_ordinary(value)):
        _restore(found, node, inputs)
    elif given.dim() != _IMAGE or is_last(given):
        found.copies += copies
        _settle(found, node, given)
    else:
        _restore(found, node, inputs)


def _view(found: Layouts, node: Node, inputs: list[Node]) -> None:
    """Have a node view another layout, where its readers bear that."""
    given = None
    if len(node.all_input_nodes) == 1 and _only_flexible(node):
        # Strides do not let every view be: an error of the one kind or, of fake tensors, the other.
        with contextlib.suppress(RuntimeError, ValueError):
            given = evaluated(node, found.values)
    if given is None or (found.memory.writes and _becomes_a_view(found, node, given)):
        _restore(found, node, inputs)
    else:
        _settle(found, node, given)


def _becomes_a_view(found: Layouts, node: Node, given: Tensor) -> bool:
    """Return whether a node, a copy of what it reads, would share its memory."""
    (read,) = node.all_input_nodes
    return _shares(given, found.of(read)) and not _shares(value_of(node), value_of(read))


def _only_flexible(node: Node) -> bool:
    """Return whether only what bears any layout reads a node, or a view of it."""
    views = [x for x in node.users if is_call(x, _VIEWS)]
    others = [x for x in node.users if x not in views]
    bears = _READERS | _POINTWISE | {*convolutions.IMAGES, "contiguous"}
    return all(is_call(x, bears) for x in others) and all(map(_only_flexible, views))


def _shares(one: Tensor, other: Tensor) -> bool:
    """Return whether two fake tensors stand for the same memory."""
    cells = (x.untyped_storage()._cdata for x in (one, other))  # noqa: SLF001 (its identity)
    return bool(next(cells) == next(cells))


def _is_as_before(found: Layouts, node: Node) -> bool:
    """Return whether a node's result is laid out as it was, though what it reads is not."""
    given, value = evaluated(node, found.values), value_of(node)
    return bool(is_ordinary(given) and is_ordinary(value) and layout(given) == layout(value))


def _is_copy_to_first(found: Layouts, node: Node) -> bool:
    """Return whether a node copies an image, only to have its channels first.

    Where something is written to in place, a copy is needed for more than its layout.
    """
    if found.memory.writes or node.target != "contiguous" or len(node.args) > 1 or node.kwargs:
        return False
    given = found.of(node.all_input_nodes[0])
    if not is_ordinary(given) or given.dim() != _IMAGE:
        return False
    return is_last(given) and not given.is_contiguous()


def _settle(found: Layouts, node: Node, value: Any) -> None:
    if layout(value) == layout(value_of(node)):
        return
    if found.memory.reaches_a_writer(node):  # perhaps by a view, which would be a copy's
        raise NotApplicable(f"something may write to {node.name}, which would have another layout")
    found.values[node] = value


def _restore(found: Layouts, node: Node, inputs: list[Node]) -> None:
    """Have a node read copies that are laid out as its inputs were."""
    found.copies += [(node, x, torch.contiguous_format) for x in inputs]
    for x in inputs:
        if node.op == "output" and value_of(x).requires_grad and not is_recorded(node):
            raise NotApplicable(f"a copy of {x.name} would leave the graph without its gradient")
        if not value_of(x).is_contiguous():
            raise NotApplicable(f"{node.name} reads {x.name} in a layout that can't be had again")


def is_last(value: Any) -> bool:
    """Return whether an image has its channels last; one that also has them first counts."""
    return bool(value.is_contiguous(memory_format=torch.channels_last))
