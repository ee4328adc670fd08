"""Merge linear layers that read the same into one, and make their results slices of its result.

::

    before:  q, k = F.linear(x, wq), F.linear(x, wk)
    after:   q, k = F.linear(x, torch.cat([wq, wk])).split([512, 128], -1)

A small batch leaves most of a GPU idle in each of the products of attention's queries, keys and
values, or of a gate and what it gates; together they keep it busier.

In inference the weights are laid side by side by `parameter_hoist`, once, and nothing is done where
that is off: in every call it would cost more than it saves. It takes memory for a second copy of
the weights.

In training, where an optimizer changes them, they are laid side by side in every call. That was
faster for queries, keys and values that attention reads as they are, within the limits below, on
CUDA; not for a gate and what it gates, and not in decoders that turn queries and keys by their
positions. The copy may be kept for the backward pass, and gradients of the weights may be slices of
one. Layers that are frozen, or that no gradient reaches, are left alone: gradients of theirs would
be computed needlessly, or be zeros where there were none.

A slice has gaps between its rows. Results that the caller gets or something writes are left alone,
and those with a reader that is not known to give the same, laid out the same, from a slice. Layers
between which another one works are not merged, either: a decoder's layers all read what its encoder
gave, and their keys and values would be kept from the first to the last.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils import _pytree as pytree

from backbay.graph import aliases
from backbay.graph.aliases import Memory, is_parameter, views
from backbay.graph.effects import changes_state, may_write, reads_by_index, written
from backbay.graph.rewrite import bound, call_before, cast_before, layout, replace_node
from backbay.graph.values import (
    evaluated,
    is_ordinary,
    is_recorded,
    propagate,
    storages,
    value_of,
    wants_gradient,
)
from backbay.kit.passes import EIGHTS, NotApplicable, Pass, PassContext, Requires
from backbay_optimizer.kernels import windowed_attention
from backbay_optimizer.passes import attention

LAYERS = 3
"""As many are merged in training: on an H200, forward and backward, two took 1.00 to 1.08 times as
long as apart in each of ten sizes (``benchmarks/conditions.py``)."""
ROWS = (512, 8192)
"""Of the input, in training: where queries, keys and values were measured, with what attends to
them. On an H200 they took from 0.80 of the time that they took apart, with 512 rows, to 0.99, with
8192 (``benchmarks/conditions.py``)."""
COPIED = 2**23
"""Elements that all weights have together, in training: a copy of 2048 x 3072 paid for itself, one
of 4096 x 6144 saved as much as it took, on an H200 (``benchmarks/conditions.py``)."""

_ATTENTION = (*attention.TARGETS, windowed_attention.OPERATOR, windowed_attention.EFFICIENT)
_LINEAR = ("input", "weight", "bias")
_MATRIX = 2


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A linear layer."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None

    @property
    def learnt(self) -> list[Node]:
        """Its parameters."""
        return [x for x in (self.weight, self.bias) if x is not None]

    @property
    def size(self) -> int:
        """How many results it has in a row."""
        return int(value_of(self.weight).shape[0])


@dataclass(frozen=True, kw_only=True)
class HorizontalFusion(Pass):
    """Make one linear layer of those that read the same.

    In inference where a later pass hoists; in training on CUDA, in 16 bits, where it was faster.
    """

    summary = (
        "linear layers that read the same are one: in inference with parameter_hoist, in training "
        "on CUDA"
    )
    requires = Requires(
        devices=("cuda",),
        because="with gradients it was measured on CUDA",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),  # of these bfloat16 was measured
        dtypes_because="with gradients it was measured in 16 bits",
    )
    """In training."""
    sources = (attention, aliases)

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Merge layers; return how many that saves."""
        if not torch.is_grad_enabled() and not context.is_hoisted:
            return 0  # weights would be laid side by side in every call
        context.name, count = context.name or self.name, 0
        for group in _groups(graph_module, context):
            for run in _undisturbed(group, context):
                with context.attempt(run[0].node):
                    count += _merged(_fitting(run, self.requires, context))
        if count:
            graph_module.recompile()
        return count


horizontal_fusion = HorizontalFusion()


# 1. What is found


def _groups(graph_module: GraphModule, context: PassContext) -> Iterator[list[_Layer]]:
    """Return layers of one input that can be one product, in their order."""
    graph = graph_module.graph
    memory, reached = Memory(graph), _reached(graph)
    groups: dict[Any, list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=F.linear):
        groups.setdefault(bound(node, _LINEAR).get("input"), []).append(node)
    for nodes in [x for x in groups.values() if len(x) > 1]:
        alike: dict[Any, list[_Layer]] = {}
        for node in nodes:
            with context.attempt(node):
                layer = _layer(node, memory)
                _check_gradients(layer, reached)
                tensors = [value_of(y) for y in (node, *layer.learnt)]
                alike.setdefault(tuple((y.dtype, y.device) for y in tensors), []).append(layer)
        yield from alike.values()


def _layer(node: Node, memory: Memory) -> _Layer:
    given = bound(node, _LINEAR)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    learnt = [y for y in (weight, bias) if y is not None]
    if not all(isinstance(value_of(y), torch.Tensor) for y in (x, node)):
        raise NotApplicable("it, or its input, is no tensor that is known")
    if not all(isinstance(y, Node) and is_parameter(y, memory) for y in learnt):
        raise NotApplicable("its weight or bias is no plain parameter, or is written")
    sizes = value_of(weight).shape
    if len(sizes) != _MATRIX or any(value_of(y).shape != sizes[:1] for y in learnt[1:]):
        raise NotApplicable("its weight is no matrix, or its bias not one number for each feature")
    if value_of(weight).shape[0] % EIGHTS:
        raise NotApplicable("its results are not in eights: slices of others would not be aligned")
    if memory.returned(node):
        raise NotApplicable("the caller gets its result, or a view of it")
    if memory.mutated(node):
        raise NotApplicable("its result, or a view of it, may be written")
    return _Layer(node=node, x=x, weight=weight, bias=bias)


def _check_gradients(layer: _Layer, reached: set[Node]) -> None:
    """See to it that the layer is one of inference, or one all of whose parameters are trained."""
    if not value_of(layer.node).requires_grad:
        if torch.is_grad_enabled():
            raise NotApplicable("no gradient of it is wanted, and nothing is hoisted in training")
        return
    tensors = [value_of(x) for x in (layer.node, layer.x, *layer.learnt)]
    if not torch.is_grad_enabled():
        raise NotApplicable("its gradient is wanted, and the graph begins where none is recorded")
    if not all(is_ordinary(x) for x in tensors):
        raise NotApplicable("its tensors are of a subclass")
    if not all(value_of(x).requires_grad for x in layer.learnt):
        raise NotApplicable("its weight or bias is frozen: a gradient would be computed needlessly")
    if layer.node not in reached:
        raise NotApplicable(
            "no gradient reaches it: its parameters would get zeros instead of none"
        )
    other = _other_reader(layer.node)
    if other is not None:
        raise NotApplicable(f"{other.name} reads it: with gradients, one pays where attention does")


def _other_reader(node: Node) -> Node | None:
    """Return what reads a result, or a view of it, and is no attention; None if nothing does."""
    shared = views(node) or {node}
    readers = sorted({y for x in shared for y in x.users if y not in shared})
    return next((x for x in readers if x.target not in _ATTENTION), None)


def _reached(graph: Graph) -> set[Node]:
    """Return the nodes that gradients of the graph's results reach."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in found and is_recorded(node)):
            found.update(filter(wants_gradient, node.all_input_nodes))
    return found


# 2. Whether it is taken


def _undisturbed(group: Sequence[_Layer], context: PassContext) -> Iterator[list[_Layer]]:
    """Cut a group where what stands between its layers keeps them from being computed at once."""
    run: list[_Layer] = []
    for layer in group:
        reason = _disturbance(run[-1], layer) if run else None
        if reason is not None:
            context.note(layer.node, reason)
            yield run
            run = []
        run.append(layer)
    yield run


def _disturbance(one: _Layer, next_one: _Layer) -> str | None:
    read, node = storages(one.x), one.node.next
    while node is not next_one.node:
        if changes_state(node):
            return f"{node.name} changes a mode between it and the one before"
        if node.target is F.linear and bound(node, _LINEAR).get("input") is not one.x:
            return f"{node.name} comes before it: the slice would be kept for long"
        if may_write(node):
            found = [storages(x) for x in written(node)]
            if read is None or any(x is None or x & read for x in found):
                return f"{node.name} may write its input, which the one before has read"
        node = node.next
    return None


def _fitting(run: list[_Layer], requires: Requires, context: PassContext) -> list[_Layer]:
    """Leave out layers whose readers would not take a slice for the whole.

    Raises:
        NotApplicable: those that are left would be slower as one.
    """
    while len(run) > 1:
        if value_of(run[0].node).requires_grad:
            requires.check(value_of(run[0].node))
            _check_cost(run)
        reasons = [_refusal(x.node, part) for x, part in zip(run, _slices(run), strict=True)]
        if not any(reasons):
            return run
        for layer, reason in zip(run, reasons, strict=True):
            if reason is not None:
                context.note(layer.node, reason)
        run = [x for x, reason in zip(run, reasons, strict=True) if reason is None]
    return []


def _check_cost(run: Sequence[_Layer]) -> None:
    """See to it that layers were measured to be faster as one in training."""
    rows = value_of(run[0].x).shape[:-1]
    copied = sum(value_of(x.weight).numel() for x in run)
    if len(run) < LAYERS:
        raise NotApplicable(
            f"{len(run)} layers with gradients: copying their weights costs more than it saves"
        )
    if not all(type(n) is int for n in rows):
        raise NotApplicable("the number of its rows is a symbol: with gradients it depends on that")
    if not ROWS[0] <= math.prod(rows) <= ROWS[1]:
        raise NotApplicable(
            f"{math.prod(rows)} rows: with gradients it was not measured on so many"
        )
    if copied > COPIED:
        raise NotApplicable(f"weights of {copied} elements: too many to copy them in every call")


def _slices(run: Sequence[_Layer]) -> Sequence[torch.Tensor]:
    """Return what results would be like as slices of one."""
    first = value_of(run[0].node)
    whole = first.new_empty((*first.shape[:-1], sum(x.size for x in run)))
    whole.requires_grad_(first.requires_grad)  # attention chooses its kernel, and layout, by that
    parts: Sequence[torch.Tensor] = whole.split([x.size for x in run], -1)
    return parts


def _refusal(node: Node, part: torch.Tensor) -> str | None:
    """Return why a slice can't stand for a result: a reader sees that; None if none does."""
    shared = views(node)
    if shared is None:
        return "what reads it is not known"
    own, values = storages(part) or frozenset(), {node: part}
    for reader in sorted({y for x in shared for y in x.users}):
        if not reads_by_index(reader):
            return f"{reader.name} may depend on how it is laid out"
        try:
            value = evaluated(reader, values)
        except (RuntimeError, ValueError) as error:
            return f"{reader.name} takes no slice: {error}".splitlines()[0]
        if reader in shared:
            values[reader] = value
        is_fresh = own.isdisjoint(storages(value) or ())
        if is_fresh and _layouts(value) != _layouts(value_of(reader)):
            return f"what {reader.name} gives would be laid out otherwise"
    return None


def _layouts(value: Any) -> list[Any]:
    leaves = pytree.tree_leaves(value)
    return [layout(x) if isinstance(x, torch.Tensor) else str(x) for x in leaves]


# 3. What takes its place


def _merged(run: list[_Layer]) -> int:
    """Make one layer of several; return how many that saves."""
    if not run:
        return 0
    place, biases = run[0].node, [x.bias for x in run if x.bias is not None]
    weight = _beside([x.weight for x in run], place)
    bias = _beside(biases, place) if biases else None
    x = cast_before(place, run[0].x, value_of(place).dtype)
    whole = _call(place, place, F.linear, x, weight, bias)
    if layout(value_of(whole)) != layout(value_of(_slices(run)[0]._base)):  # noqa: SLF001 (the whole)
        raise NotApplicable("they would be laid out otherwise")
    sizes = [x.size for x in run]
    parts = call_before(place, torch.ops.aten.split_with_sizes.default, whole, sizes, -1)
    own = [call_before(place, operator.getitem, parts, number) for number in range(len(run))]
    for layer, part in zip(run, own, strict=True):
        replace_node(layer.node, part)
    return len(run) - 1


def _beside(learnt: Sequence[Node], layer: Node) -> Node:
    """Lay parameters beside each other.

    At the graph's beginning no mode is on, and they can be hoisted. What is not hoisted stands
    before the layer: gradients are recorded there, and the copy does not wait in memory.
    """
    is_trained, dtype = value_of(layer).requires_grad, value_of(layer).dtype
    first = layer if is_trained else next(n for n in layer.graph.nodes if n.op != "placeholder")
    rounded = [  # where autocast rounds: under it `cat` refuses 16 bits of the other kind
        x
        if value_of(x).dtype == dtype
        else _call(first, layer, torch.ops.aten._to_copy.default, x, dtype=dtype)  # noqa: SLF001 (its name)
        for x in learnt
    ]
    return _call(first, layer, torch.cat, rounded)


def _call(place: Node, layer: Node, target: Any, *arguments: Any, **keywords: Any) -> Node:
    """Insert a call that belongs to a layer, with gradients where the layer has them."""
    with layer.graph.inserting_before(place):
        made = layer.graph.call_function(target, arguments, keywords)
    propagate(made, layer)
    return made
