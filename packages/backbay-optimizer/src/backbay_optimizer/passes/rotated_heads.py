"""Normalise queries and keys head by head, and turn them by their positions, in one kernel.

::

    before:  q = rms_norm(q.view(batch, tokens, heads, width)) * weight
             q = q.transpose(1, 2)
             q = q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin
             k = ...  # likewise
    after:   q, k = torch.ops.backbay.rotated_heads([q.view(...), k.view(...)], ..., 1e-6, 0.0)

What is turned must be read by nothing else, as in Qwen3 and Gemma 3. Where nothing reads queries
before keys are turned by the same angles, both are computed at once.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from backbay.graph.aliases import disturbed
from backbay.graph.effects import mutates
from backbay.graph.match import first_input, is_call
from backbay.graph.region import between
from backbay.graph.rewrite import bound, call_before, layout
from backbay.graph.values import are_numbers, is_ordinary, value_of, wants_gradient
from backbay.kit.passes import NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import rotated_heads as kernel
from backbay_optimizer.passes import memory_readers, norm_forms
from backbay_optimizer.passes.memory_readers import memory_of
from backbay_optimizer.passes.norm_forms import (
    FACTORS,
    RMS_NORMS,
    ROOTS,
    SUMS,
    Norm,
    norm_of,
    operands,
)

_TRANSPOSES = (torch.transpose, "transpose", torch.swapaxes, "swapaxes")
_UNSQUEEZES = (torch.unsqueeze, "unsqueeze")
_JOINS = (torch.cat, torch.concat, torch.concatenate)
_NEGATIVES = (operator.neg, torch.neg, torch.negative, "neg", "negative")
_HEADS, _HALVES = 4, 2


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """The rotary embedding of what is normalised."""

    end: Node
    cos: Node
    sin: Node
    parts: list[Node]


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """Heads that are normalised and turned."""

    norm: Norm
    end: Node
    x: Node
    weight: Node
    cos: Node
    sin: Node
    how: tuple[float, float]
    parts: list[Node]

    @property
    def given(self) -> list[Node]:
        """What it is made of."""
        return [self.x, self.weight, self.cos, self.sin]

    @property
    def read(self) -> list[Node]:
        """What nothing may write on the way."""
        return [*self.given, *self.norm.casts, *self.norm.factors]

    @property
    def first(self) -> Node:
        """Where what it is made of is first read."""
        return min([self.norm.first, *self.norm.factors])

    @property
    def alike(self) -> tuple[Any, ...]:
        """What others must have in common with it to be computed at once."""
        value = value_of(self.x)
        sizes = value.shape  # as text: comparing symbols would guard on the answer
        outer = f"{sizes[0]} {sizes[1]} {sizes[3]}"
        angles = _view_of(self.cos), _view_of(self.sin)
        return *angles, self.how, outer, value.dtype, value.device


@dataclass(frozen=True, kw_only=True)
class _Site:
    """Heads that are computed at once."""

    node: Node
    """Where the norm of the first of them is."""
    heads: list[_Heads]


@dataclass(frozen=True, kw_only=True)
class RotatedHeads(Rewrite[_Site]):
    """Normalise heads and turn them in one Triton kernel; for CUDA."""

    summary = "on CUDA, RMSNorm of heads and the rotary embedding are one kernel, in inference"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=conditions.DTYPES,
        dtypes_because="the kernel computes in single precision",
        inference=True,
    )
    sources = (kernel, conditions.device_code(kernel), conditions, memory_readers, norm_forms)

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[_Site]:
        """Yield heads, two at once where they can be."""
        waiting: dict[tuple[Any, ...], _Site] = {}
        found: list[_Site] = []
        for node in [x for x in graph_module.graph.nodes if is_call(x, (*RMS_NORMS, *ROOTS))]:
            heads = None
            with context.attempt(node):
                heads = self._heads(node)
            if heads is None:
                continue
            site = waiting.pop(heads.alike, None)
            if site is not None and _is_computed_at_once(site.heads[0], heads):
                site.heads.append(heads)
                continue
            waiting[heads.alike] = _Site(node=node, heads=[heads])
            found.append(waiting[heads.alike])
        yield from found

    def _heads(self, node: Node) -> _Heads | None:
        """Return heads that a norm, or a root, is of, and that are turned; None for others."""
        if value_of(node).dim() != _HEADS:
            return None
        norm = norm_of(node)
        if norm is None:
            return None
        is_first = _is_moved(norm.x)
        turn = _turned(norm.node if is_first else _moved(norm.node))
        if turn is None:
            return None
        self.requires.check(value_of(node))
        heads = _Heads(
            norm=norm,
            end=turn.end,
            x=first_input(norm.x) if is_first else norm.x,
            weight=norm.weight,
            cos=turn.cos,
            sin=turn.sin,
            how=(norm.eps, norm.offset),
            parts=[*dict.fromkeys([*norm.parts, norm.node, *turn.parts])],
        )
        _check(heads)
        return heads

    def replacement(self, site: _Site, context: PassContext) -> Replacement:  # noqa: ARG002 (of others)
        """Return heads that are normalised and turned by the operator."""
        xs, weights = [x.x for x in site.heads], [x.weight for x in site.heads]
        cos, sin, how = site.heads[0].cos, site.heads[0].sin, site.heads[0].how
        assert callable(kernel.rotated_heads)  # registers it: torch.ops has it only after that
        place = max(x.end for x in site.heads)
        angles = [_rows_of(x, place) for x in (cos, sin)]
        call = call_before(
            place, torch.ops.backbay.rotated_heads.default, xs, weights, *angles, *how
        )
        new = {
            heads.end: call_before(place, operator.getitem, call, number)
            for number, heads in enumerate(site.heads)
        }
        parts = [x for heads in site.heads for x in heads.parts]
        return Replacement(new, [x for x in parts if x not in new] + [*new])

    def is_alike(self, old: Node, new: Node) -> bool:
        """Whether nobody can tell layouts apart: strides of one head, or token, do not count.

        Those of fake tensors are not those that eager computes.
        """
        return layout(_without_ones(value_of(new))) == layout(_without_ones(value_of(old)))


rotated_heads = RotatedHeads()


# 1. What is found


def _is_moved(node: Any) -> bool:
    """Whether heads and tokens change their places in a node."""
    if not isinstance(node, Node) or not is_call(node, _TRANSPOSES):
        return False
    return {*map(_dimension, node.args[1:])} == {1, 2}


def _moved(node: Node) -> Node | None:
    found = next(iter(node.users), None)
    return found if len(node.users) == 1 and _is_moved(found) else None


def _turned(node: Node | None) -> _Turn | None:
    """Return what turns heads, or None where something else is done to them."""
    if node is None:
        return None
    straight = [x for x in node.users if is_call(x, FACTORS)]
    joined = _joined(node)
    if len(straight) != 1 or joined is None or len(joined.users) != 1:
        return None
    (crossed,) = joined.users
    (end,) = straight[0].users if len(straight[0].users) == 1 else (None,)
    if end is None or len(crossed.users) != 1 or {*operands(end, SUMS)} != {straight[0], crossed}:
        return None
    cos, sin = _other(straight[0], node), _other(crossed, joined)
    if cos is None or sin is None:
        return None
    halves = [x for x in between(joined, [node]) if x is not joined]
    _check_read(node, straight[0], joined, halves)
    parts = [node, *halves, joined, straight[0], crossed, end]
    return _Turn(end=end, cos=cos, sin=sin, parts=parts)


def _dimension(given: Any) -> Any:
    return given + _HEADS if type(given) is int and given < 0 else given


def _other(product: Node, one: Node) -> Node | None:
    found = [x for x in operands(product, FACTORS) if x is not one]
    return found[0] if len(found) == 1 and isinstance(found[0], Node) else None


def _joined(moved: Node) -> Node | None:
    """Return what joins the second half of a tensor, negated, and its first."""
    for half in moved.users:
        for user in half.users:
            for end in (user, *user.users):
                if is_call(end, _JOINS) and _is_crossed(end, moved):
                    return end
    return None


def _is_crossed(node: Node, moved: Node) -> bool:
    given = bound(node, ("tensors", "dim"))
    tensors = given.get("tensors")
    if not isinstance(tensors, Sequence) or len(tensors) != _HALVES:
        return False
    if _dimension(given.get("dim", given.get("axis", 0))) != _HEADS - 1:
        return False
    negative, first = tensors
    if not is_call(negative, _NEGATIVES):
        return False
    return _half(first, moved) == 0 and _half(first_input(negative), moved) == 1


def _half(node: Any, moved: Node) -> int | None:
    """Return which half of the last dimension a node is of another: 0, 1 or None."""
    if not is_call(node, (operator.getitem,)):
        return None
    source, index = node.args
    if is_call(source, ("chunk", torch.chunk)) and first_input(source) is moved:
        given = bound(source, ("input", "chunks", "dim"))
        is_half = given.get("chunks") == _HALVES and _dimension(given.get("dim", 0)) == _HEADS - 1
        return index if is_half else None
    width = value_of(moved).shape[-1]
    if not are_numbers([width]):
        return None  # comparing symbols would guard on the answer
    halves = (slice(None, width // 2, None), slice(width // 2, None, None))
    if source is not moved or not isinstance(index, tuple) or index[0] is not Ellipsis:
        return None
    return halves.index(index[1]) if len(index) == _HALVES and index[1] in halves else None


def _check_read(node: Node, straight: Node, joined: Node, halves: list[Node]) -> None:
    """Check that nothing else reads what is turned, or a part of it on the way."""
    readers = {user for part in (node, *halves) for user in part.users}
    if not readers <= {straight, joined, *halves}:
        raise NotApplicable("something else reads a part of it")


# 2. Whether it is taken


def _check(heads: _Heads) -> None:
    if not all(isinstance(x, Node) and is_ordinary(value_of(x)) for x in heads.given):
        raise NotApplicable("it takes what is no ordinary tensor")
    if wants_gradient(heads.end):
        raise NotApplicable("a gradient is wanted")
    x, weight, *angles = map(value_of, heads.given)
    if len({t.dtype for t in (x, weight, *angles, value_of(heads.end))}) != 1:
        raise NotApplicable("its parts are of several dtypes")
    if type(heads.how[0]) is not float:
        raise NotApplicable("its epsilon is no number")
    _check_sizes(x, weight, angles)
    if reason := kernel.pays(x, weight, *angles):
        raise NotApplicable(reason)
    if memory_of(heads.x) is None:
        raise NotApplicable("what computes it is computed with it by Inductor")
    if any(map(mutates, heads.parts)):
        raise NotApplicable("a part of it writes what others may read")
    if why := disturbed(heads.first, heads.end, heads.read):
        raise NotApplicable(why)


def _check_sizes(x: Any, weight: Any, angles: Sequence[Any]) -> None:
    batch, tokens, heads, width = x.shape
    if not are_numbers((heads, width)) or width % 2 or str(x.stride()[-2:]) != str((width, 1)):
        raise NotApplicable("its heads do not lie side by side")
    # As text: comparing symbols would guard on the answer.
    if str(tuple(weight.shape)) != f"({width},)":
        raise NotApplicable("its weight is not one number for each column")
    if weight.stride() != (1,):
        raise NotApplicable("its weight does not lie in one piece")
    known = {str((batch, 1, tokens, width)), str((1, 1, tokens, width)), str((tokens, width))}
    shapes = {str(tuple(t.shape)) for t in angles}
    if len(shapes) != 1 or not shapes <= known:
        raise NotApplicable("its angles are not those of tokens")


def _view_of(angles: Node) -> Any:
    """Return angles, or of what and how they are a view, which queries and keys may both have."""
    if not is_call(angles, _UNSQUEEZES):
        return angles
    return angles.target, angles.args, tuple(angles.kwargs.items())


def _is_computed_at_once(one: _Heads, other: _Heads) -> bool:
    """Whether nothing keeps heads from being computed where the last of both are."""
    first, end = min(one.first, other.first), max(one.end, other.end)
    both = {*one.parts, *other.parts}
    if any(reader < end for x in (one, other) for reader in x.end.users):
        return False
    return disturbed(first, end, [*one.read, *other.read], inside=both) is None


# 3. What takes its place


def _without_ones(value: torch.Tensor) -> torch.Tensor:
    # A symbol is asked nothing: it would guard on the answer.
    return value.squeeze([i for i, n in enumerate(value.shape) if type(n) is int and n == 1])


def _rows_of(angles: Node, place: Node) -> Node:
    """Insert a view of angles as rows of tokens, for one batch or for each."""
    if value_of(angles).dim() == _HEADS:
        return call_before(place, torch.ops.aten.squeeze.dim, angles, 1)
    return call_before(place, torch.ops.aten.unsqueeze.default, angles, 0)
