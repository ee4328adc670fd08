"""Linear layers that read the same become one, and their results slices of its result.

::

    before:  q, k = F.linear(x, wq), F.linear(x, wk)
    after:   q, k = F.linear(x, torch.cat([wq, wk])).split([512, 128], -1)

A small batch leaves most of a GPU idle in each of the products of attention's queries, keys and
values, or of a gate and what it gates; together they keep it busier. The weights are laid side by
side by `parameter_hoist`, once, and this pass does nothing where that is off: in every call it
would cost more than it saves. It takes memory for a second copy of the weights.

A slice has gaps between its rows. Results that the caller gets or something writes are left alone,
and those with a reader that is not known to give the same, laid out the same, from a slice. Layers
between which another one works are not merged, either: a decoder's layers all read what its encoder
gave, and their keys and values would be kept from the first to the last.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils import _pytree as pytree

from backbay.graph import parameters
from backbay.graph.aliases import Memory
from backbay.graph.effects import changes_state, may_write, reads_by_index, written
from backbay.graph.match import NearMiss
from backbay.graph.parameters import is_parameter
from backbay.graph.put import call_before, cast_before, erase_between, exchange, layout
from backbay.graph.values import evaluated, propagate, storages, value_of
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes.unfit import UnfitError

EIGHTS = 8
"""Results of a layer are a multiple of it: each slice of 16 bits is then aligned for attention."""

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
    def size(self) -> int:
        """How many results it has in a row."""
        return int(value_of(self.weight).shape[0])


@graph_pass(level="torch", sources=(parameters,))
def merged_linears(graph_module: GraphModule, context: PassContext) -> int:
    """Make one linear layer of those that read the same; in inference, with `parameter_hoist`.

    ::

        before:  F.linear(x, wq), F.linear(x, wk)
        after:   F.linear(x, torch.cat([wq, wk])).split([512, 128], -1)
    """
    is_hoisted = context.options.get("parameter_hoist", True) is not False
    if torch.is_grad_enabled() or not is_hoisted:
        return 0
    count = 0
    for group in _groups(graph_module, context):
        for run in _undisturbed(group, context):
            count += _merged(run, context)
    if count:
        graph_module.recompile()
    return count


# 1. What is found


def _groups(graph_module: GraphModule, context: PassContext) -> Iterator[list[_Layer]]:
    """Give layers of one input that can be one product, in their order."""
    graph = graph_module.graph
    memory = Memory(graph)
    groups: dict[Any, list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=F.linear):
        groups.setdefault(_given(node).get("input"), []).append(node)
    for nodes in [x for x in groups.values() if len(x) > 1]:
        alike: dict[Any, list[_Layer]] = {}
        for node in nodes:
            try:
                layer = _layer(node, memory)
            except UnfitError as error:
                context.near.append(NearMiss("merged_linears", node, str(error)))
                continue
            alike.setdefault(_kind(layer), []).append(layer)
        yield from alike.values()


def _given(node: Node) -> dict[str, Any]:
    return {**dict(zip(_LINEAR, node.args, strict=False)), **node.kwargs}


def _layer(node: Node, memory: Memory) -> _Layer:
    given = _given(node)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    learnt = [y for y in (weight, bias) if y is not None]
    if not all(isinstance(value_of(y), torch.Tensor) for y in (x, node)):
        raise UnfitError("it, or its input, is no tensor that is known")
    if not all(isinstance(y, Node) and is_parameter(y, memory) for y in learnt):
        raise UnfitError("its weight or bias is no plain parameter, or is written")
    if value_of(node).requires_grad:
        raise UnfitError("its gradient is wanted")
    if value_of(weight).dim() != _MATRIX or any(value_of(y).dim() != 1 for y in learnt[1:]):
        raise UnfitError("its weight is no matrix, or its bias no vector")
    if value_of(weight).shape[0] % EIGHTS:
        raise UnfitError("its results are not in eights: slices of others would not be aligned")
    if memory.returned(node):
        raise UnfitError("the caller gets its result, or a view of it")
    if memory.mutated(node):
        raise UnfitError("its result, or a view of it, may be written")
    return _Layer(node=node, x=x, weight=weight, bias=bias)


def _kind(layer: _Layer) -> tuple[Any, ...]:
    tensors = (value_of(x) for x in (layer.node, layer.weight, layer.bias))
    return tuple(None if x is None else (x.dtype, x.device) for x in tensors)


# 2. Whether it is taken


def _undisturbed(group: Sequence[_Layer], context: PassContext) -> Iterator[list[_Layer]]:
    """Cut a group where what stands between its layers keeps them from being computed at once."""
    run: list[_Layer] = []
    for layer in group:
        reason = _disturbance(run[-1], layer) if run else None
        if reason is not None:
            context.near.append(NearMiss("merged_linears", layer.node, reason))
            yield run
            run = []
        run.append(layer)
    yield run


def _disturbance(one: _Layer, next_one: _Layer) -> str | None:
    read, node = storages(one.x), one.node.next
    while node is not next_one.node:
        if changes_state(node):
            return f"{node.name} changes a mode between it and the one before"
        if node.target is F.linear and _given(node).get("input") is not one.x:
            return f"{node.name} comes before it: the slice would be kept for long"
        if may_write(node):
            found = [storages(x) for x in written(node)]
            if read is None or any(x is None or x & read for x in found):
                return f"{node.name} may write its input, which the one before has read"
        node = node.next
    return None


def _fitting(run: list[_Layer], context: PassContext) -> list[_Layer]:
    """Leave out layers whose readers would not take a slice for the whole."""
    while len(run) > 1:
        reasons = [_refusal(x.node, part) for x, part in zip(run, _slices(run), strict=True)]
        if not any(reasons):
            return run
        for layer, reason in zip(run, reasons, strict=True):
            if reason is not None:
                context.near.append(NearMiss("merged_linears", layer.node, reason))
        run = [x for x, reason in zip(run, reasons, strict=True) if reason is None]
    return []


def _slices(run: Sequence[_Layer]) -> Sequence[torch.Tensor]:
    """Give what results would be like as slices of one."""
    first = value_of(run[0].node)
    whole = first.new_empty((*first.shape[:-1], sum(x.size for x in run)))
    parts: Sequence[torch.Tensor] = whole.split([x.size for x in run], -1)
    return parts


def _refusal(node: Node, part: torch.Tensor) -> str | None:
    """Say why a slice can't stand for a result: a reader sees that; None if none does."""
    views = _views(node)
    if views is None:
        return "what reads it is not known"
    own, values = part.untyped_storage()._cdata, {node: part}  # noqa: SLF001 (its identity)
    for reader in sorted({y for x in views for y in x.users}):
        if not reads_by_index(reader):
            return f"{reader.name} may depend on how it is laid out"
        try:
            value = evaluated(reader, values)
        except (RuntimeError, ValueError) as error:
            return f"{reader.name} takes no slice: {error}".splitlines()[0]
        if reader in views:
            values[reader] = value
        if _is_fresh(value, own) and _layouts(value) != _layouts(value_of(reader)):
            return f"what {reader.name} gives would be laid out otherwise"
    return None


def _views(node: Node) -> set[Node] | None:
    """Give a node and what shares its memory; None where that is not known."""
    own, found, waiting = storages(node), {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            theirs = storages(user)
            if own is None or theirs is None:
                return None
            if user not in found and not own.isdisjoint(theirs):
                found.add(user)
                waiting.append(user)
    return found


def _is_fresh(value: Any, storage: int) -> bool:
    tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return all(x.untyped_storage()._cdata != storage for x in tensors)  # noqa: SLF001 (as above)


def _layouts(value: Any) -> list[Any]:
    leaves = pytree.tree_leaves(value)
    return [layout(x) if isinstance(x, torch.Tensor) else str(x) for x in leaves]


# 3. What takes its place


def _merged(run: list[_Layer], context: PassContext) -> int:
    """Make one layer of several; give how many that saves."""
    run = _fitting(run, context)
    if not run:
        return 0
    place, biases = run[0].node, [x.bias for x in run if x.bias is not None]
    before, dtype = place.prev, value_of(place).dtype
    weight = _beside([x.weight for x in run], place)
    bias = _beside(biases, place) if biases else None
    x = cast_before(place, run[0].x, dtype)
    whole = _call(place, place, F.linear, x, weight, bias)
    if layout(value_of(whole)) != layout(value_of(_slices(run)[0]._base)):  # noqa: SLF001 (the whole)
        context.near.append(NearMiss("merged_linears", place, "they would be laid out otherwise"))
        erase_between(before, place)
        return 0
    sizes = [x.size for x in run]
    parts = call_before(place, torch.ops.aten.split_with_sizes.default, whole, sizes, -1)
    own = [call_before(place, operator.getitem, parts, number) for number in range(len(run))]
    for layer, part in zip(run, own, strict=True):
        exchange(layer.node, part)
    return len(run) - 1


def _beside(learnt: Sequence[Node], layer: Node) -> Node:
    """Lay parameters beside each other, at the graph's beginning: no mode is on there."""
    first = next(n for n in layer.graph.nodes if n.op != "placeholder")
    together = _call(first, layer, torch.cat, list(learnt))
    dtype = value_of(layer).dtype
    if value_of(together).dtype == dtype:  # else autocast computes it
        return together
    return _call(first, layer, torch.ops.aten._to_copy.default, together, dtype=dtype)  # noqa: SLF001 (its name)


def _call(place: Node, layer: Node, target: Any, *arguments: Any, **keywords: Any) -> Node:
    """Insert a call that belongs to a layer, and of which no gradient is wanted."""
    with layer.graph.inserting_before(place):
        made = layer.graph.call_function(target, arguments, keywords)
    propagate(made, layer)
    return made
