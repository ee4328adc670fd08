"""Round rows to float8 with a scale for each in one read, with the norm or gate before it, on CUDA.

::

    before:  y = F.silu(gate) * up
             scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
             (y.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    after:   y, scale, _ = torch.ops.backbay.float8_rows(
                 gate, up, None, "silu", 0.0, 0.0, 1e-12, 448.0)

Before it may stand an RMSNorm, called or written out, with the sum of a residual branch, or a SiLU
that gates another tensor; or nothing, where what is rounded is in memory anyway. A scale may be a
quotient or its reciprocal, and be returned.
"""

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory, disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before
from backbay.graph.values import is_ordinary, storages, value_of, wants_gradient
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import float8_rows as kernel
from backbay_optimizer.passes import memory_readers, norm_forms, row_scales
from backbay_optimizer.passes.memory_readers import are_rows, memory_of
from backbay_optimizer.passes.norm_forms import (
    FACTORS,
    RMS_NORMS,
    ROOTS,
    SUMS,
    Norm,
    is_cast,
    norm_of,
    operands,
)
from backbay_optimizer.passes.row_scales import (
    CLAMPS,
    MAGNITUDES,
    QUOTIENTS,
    WIDE,
    RowScale,
    behind_casts,
    scales_behind,
)

_CASTS = ("to", "type")
_GATES = (F.silu,)
_FARTHEST = 6
"""Nodes from a norm's result to its square root, at most."""


@dataclass(kw_only=True)
class _Rounded:
    """Rows that are rounded to float8."""

    node: Node
    values: list[Node]
    """What is rounded, in one dtype or another; the last is not a cast."""
    scale: RowScale
    parts: list[Node]
    """From there on to the result, which is not among them."""
    scales: dict[Node, RowScale]
    """Of the parts, those that are a scale."""


@dataclass(kw_only=True)
class _Source:
    """What rows are made of."""

    x: Node
    by: Node | None = None
    residual: Node | None = None
    total: Node | None = None
    """The sum of ``x`` and the residual."""
    kind: str = ""
    eps: float = 0.0
    offset: float = 0.0
    parts: list[Node] = field(default_factory=list)
    factors: list[Node] = field(default_factory=list)
    """What is made of a norm's weight: others may read it."""

    @property
    def given(self) -> list[Node]:
        """What the operator reads."""
        return [x for x in (self.x, self.by, self.residual) if x is not None]

    @property
    def rows(self) -> list[Node]:
        """Those of them that are rows."""
        return [x for x in self.given if x is not self.by or self.kind != "rms_norm"]


@dataclass(frozen=True, kw_only=True)
class Float8Rows(Rewrite[_Rounded]):
    """Round rows to float8, with norm or gate, in one read, in Triton; for CUDA."""

    summary = "on CUDA, rows are rounded to float8 in one read, with the norm or gate before it"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(kernel.FLOAT8,),
        dtypes_because="it was written for it",
    )
    targets = _CASTS
    sources = (
        kernel,
        conditions.device_code(kernel),
        conditions,
        memory_readers,
        norm_forms,
        row_scales,
    )

    def site(self, call: Call, context: PassContext) -> _Rounded | None:  # noqa: ARG002 (of those that ask)
        """Return what is rounded to float8 by a scale of each row; None for another cast."""
        return _rounded(call.node) if value_of(call.node).dtype == kernel.FLOAT8 else None

    def replacement(self, site: _Rounded, context: PassContext) -> Replacement:
        """Return the operator's results in the place of the rows, the scales and the sum."""
        graph, source = site.node.graph, _source(site)
        memory = context.kept(("memory", graph), lambda: Memory(graph))
        sums = [] if source.total is None else [source.total]
        parts = [*dict.fromkeys([*sums, *source.parts, *site.parts])]
        scales = [x for x in site.scales if _others(x, {*parts, site.node})]
        first = min([*sums, *scales, site.node])
        _check_values(site, source)
        _check_same(site, source, parts, first, memory)
        _check_scales(site, scales, memory)
        _check_pays(site, source, parts)
        may_share = not any(map(memory.returned, (*sums, *scales, site.node)))
        call = _called(first, site, source, may_share=may_share)
        new = {x: _part(first, call, 2) for x in sums}
        new |= {x: _scale_like(x, first, call, site.scales[x]) for x in scales}
        new[site.node] = _part(first, call, 0)
        return Replacement(new, [*parts, site.node])


float8_rows = Float8Rows()


# 1. What is rounded


def _rounded(node: Node) -> _Rounded | None:
    clamped, at = _clamped(node)
    is_inverse = is_call(at, FACTORS)
    value, by = operands(at, (*FACTORS, *QUOTIENTS))
    if is_inverse and isinstance(value, Node) and _is_narrow(value):
        value, by = by, value
    if not isinstance(value, Node) or not isinstance(by, Node) or not _is_narrow(by):
        return None
    scales = scales_behind(by)
    if scales is None or by not in scales.found:
        return None
    one, other = behind_casts(value), behind_casts(first_input(scales.magnitude))
    if one[-1] is not other[-1]:
        return None
    scale = scales.found[by]
    if math.isclose(scale.most, kernel.LARGEST):
        scale = scale._replace(most=kernel.LARGEST)
    if scale.is_inverse is not is_inverse or scale.most > kernel.LARGEST:
        raise NotApplicable("its rows become larger than float8 can be")
    if is_inverse and not clamped and not scale.floor:
        raise NotApplicable("a row of zeros is not what it is in PyTorch")
    if value_of(at).dtype not in WIDE:
        raise NotApplicable("it is not divided in single precision")
    return _Rounded(
        node=node,
        values=[*dict.fromkeys([*one[:-1], *other[:-1], one[-1]])],
        scale=scale,
        parts=[*clamped, at, *scales.found, *scales.parts],
        scales=scales.found,
    )


def _clamped(node: Node) -> tuple[list[Node], Any]:
    """Return what clamps to what float8 can be before a cast, and what is clamped."""
    clamped, at = [], first_input(node)
    while is_call(at, CLAMPS):
        given = bound(at, ("input", "min", "max"))
        if (given.get("min"), given.get("max")) != (-kernel.LARGEST, kernel.LARGEST):
            break
        clamped.append(at)
        at = first_input(at)
    return clamped, at


def _is_narrow(node: Node) -> bool:
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or not value.dim():
        return False
    size = value.shape[-1]
    return type(size) is int and size == 1  # to compare a symbol would guard on the answer


# 2. What it is made of


def _source(site: _Rounded) -> _Source:
    """Return what rows are made of, taking in a norm or a gate."""
    value = site.values[-1]
    norm = _norm(site)
    if norm is not None:
        return _of_norm(norm, site)
    gate, gated = operands(value, FACTORS)
    if not _is_gate(gate):
        gate, gated = gated, gate
    if not _is_gate(gate):
        return _Source(x=value, parts=site.values[:-1])
    activations, before = behind_casts(gate), behind_casts(gated)
    x = behind_casts(first_input(activations[-1]))
    if bound(activations[-1], ("input", "inplace")).get("inplace"):
        raise NotApplicable("its SiLU is written in place")
    found = [*site.values, *activations, *before[:-1], *x[:-1]]
    return _Source(x=x[-1], by=before[-1], kind="silu", parts=found)


def _is_gate(node: Any) -> bool:
    return isinstance(node, Node) and is_call(behind_casts(node)[-1], _GATES)


def _norm(site: _Rounded) -> Norm | None:
    """Return the RMSNorm that is rounded, or None."""
    for value in site.values:
        if is_call(value, RMS_NORMS):
            return norm_of(value)
    root = next(_roots(site.values[-1]), None)
    norm = None if root is None else norm_of(root)
    return norm if norm is not None and norm.node in site.values else None


def _roots(node: Any, depth: int = _FARTHEST) -> Iterator[Node]:
    """Yield square roots that a node has as a factor."""
    if is_call(node, ROOTS):
        yield node
    elif depth and (is_cast(node) or is_call(node, FACTORS)):
        for before in node.all_input_nodes:
            yield from _roots(before, depth - 1)


def _of_norm(norm: Norm, site: _Rounded) -> _Source:
    if norm.is_centred or type(norm.eps) is not float or not isinstance(norm.weight, Node):
        raise NotApplicable("its norm has no weight, or no epsilon")
    parts = dict.fromkeys([*norm.parts, *norm.casts, norm.node, *site.values])
    found = _Source(
        x=norm.x,
        by=norm.weight,
        kind="rms_norm",
        eps=norm.eps,
        offset=norm.offset,
        factors=norm.factors,
        parts=[x for x in parts if x is not norm.x],
    )
    return _with_residual(found)


def _with_residual(source: _Source) -> _Source:
    """Return what a norm is of, with the sum before it taken in if that is not in memory."""
    total, (one, other) = source.x, operands(source.x, SUMS)
    if _in_memory(total) or not isinstance(one, Node) or not isinstance(other, Node):
        return source
    if not _others(total, {*source.parts}):
        raise NotApplicable("nothing else reads the sum before it, which Inductor computes with it")
    if not all(_is_like(x, total) for x in (one, other)):
        raise NotApplicable("what is added before it is of another shape")
    return replace(source, x=one, residual=other, total=total)


def _is_like(one: Node, other: Node) -> bool:
    values = value_of(one), value_of(other)
    if not all(isinstance(x, torch.Tensor) for x in values):
        return False
    # As text: comparing symbols would guard on the answer.
    return len({str(tuple(x.shape)) for x in values}) == 1


# 3. Whether it is taken


def _others(node: Node, parts: set[Node]) -> list[Node]:
    return [x for x in node.users if x not in parts]


def _check_values(site: _Rounded, source: _Source) -> None:
    """Check that the operator takes what it would read."""
    if not all(is_ordinary(value_of(x)) for x in source.given):
        raise NotApplicable("it takes what is no ordinary tensor")
    rows = [value_of(x) for x in source.rows]
    if not rows[0].dim() or type(rows[0].shape[-1]) is not int:
        raise NotApplicable("the number of its columns is a symbol")
    if not all(map(are_rows, rows)):
        raise NotApplicable("its rows do not lie one behind the other")
    if not all(_is_like(x, site.node) for x in source.rows):
        raise NotApplicable("what it is made of is of another shape")
    by = value_of(source.by)
    if source.kind == "rms_norm" and str(tuple(by.shape)) != f"({rows[0].shape[-1]},)":
        raise NotApplicable("its weight is not one number for each column")
    if source.kind == "rms_norm" and by.stride() != (1,):
        raise NotApplicable("its weight does not lie in one piece")


def _check_same(
    site: _Rounded, source: _Source, parts: list[Node], first: Node, memory: Memory
) -> None:
    """Check that the operator gives the same, in the place of the first of what it replaces."""
    if any(map(wants_gradient, (*parts, site.node))):
        raise NotApplicable("a gradient is wanted")
    dtypes = {*WIDE, value_of(source.x).dtype}
    if any(is_cast(x) and value_of(x).dtype not in dtypes for x in parts):
        raise NotApplicable("it is rounded to another dtype on the way")
    if not all(x < first for x in source.given):
        raise NotApplicable("its weight is made after the sum before it")
    read = [*source.given, *source.factors, *parts]
    if any(map(memory.mutated, (*read, site.node))):
        raise NotApplicable("something writes what it reads, gives or computes")
    if why := disturbed(min(read[len(source.given) :]), site.node, read):
        raise NotApplicable(why)


def _check_scales(site: _Rounded, scales: list[Node], memory: Memory) -> None:
    for node in scales:
        scale = site.scales[node]
        is_same = math.isclose(scale.most, site.scale.most) and scale.floor == site.scale.floor
        if not is_same or value_of(node).dtype != torch.float32:
            raise NotApplicable("something else reads what its scale is made of")
    inside = {*site.parts, site.node}
    if any(_others(x, inside) for x in site.parts if x not in site.scales):
        raise NotApplicable("something else reads a part of it")
    for one, other in itertools.combinations(filter(memory.returned, scales), 2):
        is_shared = storages(one) == storages(other)
        will_be = not site.scales[one].is_inverse and not site.scales[other].is_inverse
        if is_shared is not will_be:
            raise NotApplicable("the caller gets two of its scales, and may tell their memory")


def _check_pays(site: _Rounded, source: _Source, parts: list[Node]) -> None:
    if reason := kernel.pays(*(value_of(x) for x in source.given)):
        raise NotApplicable(reason)
    if not all(map(_in_memory, source.rows)):
        raise NotApplicable("what computes it is computed with it by Inductor")
    made = [x for x in site.values if x is not source.x]
    readers = (y for x in made for y in _others(x, {*parts, site.node}))
    if source.kind and not all(map(_is_rounding, readers)):
        raise NotApplicable("something else reads what is rounded")


def _in_memory(node: Node) -> bool:
    before = first_input(node) if is_call(node, (operator.getitem,)) else node
    target = before.target if isinstance(before, Node) else None
    is_ours = isinstance(target, OpOverload) and target.namespace == "backbay"
    return is_ours or memory_of(node) is not None


def _is_rounding(node: Node) -> bool:
    """Return whether all that is made of rows is their largest magnitude, or float8."""
    value = value_of(node)
    if is_call(node, MAGNITUDES):
        return True
    if not isinstance(value, torch.Tensor) or value.dtype == kernel.FLOAT8:
        return isinstance(value, torch.Tensor)
    is_on_the_way = is_cast(node) or is_call(node, (*CLAMPS, *FACTORS, *QUOTIENTS))
    return is_on_the_way and bool(node.users) and all(map(_is_rounding, node.users))


# 4. What takes its place


def _called(place: Node, site: _Rounded, source: _Source, *, may_share: bool) -> Node:
    """Return a call of the operator: a new one, or one that is there already and gives the same.

    Nothing writes what either reads or gives, or neither would be there; and of results that are
    shared, the caller must get one at most.
    """
    assert callable(kernel.float8_rows)  # registers it: torch.ops has it only after that
    operator_: OpOverload[..., Any] = torch.ops.backbay.float8_rows.default
    numbers = (source.eps, source.offset, site.scale.floor, site.scale.most)
    arguments = (source.x, source.by, source.residual, source.kind, *numbers)
    known: Node
    for known in place.graph.find_nodes(op="call_function", target=operator_):
        is_same = may_share and known < place and known.args == arguments
        if is_same and disturbed(known, place, source.given) is None:
            return known
    return call_before(place, operator_, *arguments)


def _part(place: Node, call: Node, number: int) -> Node:
    return call_before(place, operator.getitem, call, number)


def _scale_like(node: Node, place: Node, call: Node, scale: RowScale) -> Node:
    """Return the scale of each row as a node has it: maybe its reciprocal, maybe of rows alone."""
    made = _part(place, call, 1)
    if scale.is_inverse:
        made = call_before(place, torch.reciprocal, made)
    rows = value_of(made).dim() - value_of(node).dim()
    return call_before(place, torch.squeeze, made, -1) if rows else made
