"""Move selections of rows above what works row by row: what is cut away is not computed.

::

    before:  F.linear(F.layer_norm(x, (768,)), weight)[:, -1]
    after:   F.linear(F.layer_norm(x[:, -1:], (768,)), weight)[:, 0]

A decoder that returns the logits of its last token, or a classifier that reads its class token,
computes the last norm, its head and much of its last block for every token. Inductor reads less of
what is pointwise, and computes products and reductions whole. Which rows are needed of a value is
what all that read it need, so a residual stream is cut where each of its readers is.

A cut that the caller gets is laid out as eager's, which is a view of the whole: with its gaps, in
which nothing is written. Left alone is what mixes rows, and what the graph writes to.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from backbay.graph.aliases import Memory
from backbay.graph.rewrite import call_before, erase_dead, replace_node
from backbay.graph.values import are_numbers, is_recorded, value_of, wants_gradient
from backbay.kit.passes import Pass, PassContext
from backbay_optimizer.passes import rowwise
from backbay_optimizer.passes.rowwise import WHOLE, MixedError, Needs, Part


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A selection of the graph's: the part that it takes, and what it does with dimensions."""

    node: Node
    source: Node
    part: Part
    then: tuple[Any, ...]
    """What is left to do with the part: 0 where a dimension is dropped."""


@dataclass(frozen=True, kw_only=True)
class SlicePushdown(Pass):
    """Compute only the rows that are selected later; works on Dynamo's graph."""

    summary = "rows that are cut away at the end are not computed"
    sources = (rowwise,)

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Move cuts; return how many."""
        context.name, memory = context.name or self.name, Memory(graph_module.graph)
        cuts = {x.node: x for x in _cuts(graph_module) if not memory.mutated(x.source)}
        for cut in list(cuts.values()):
            why = _refusal(cut, memory)
            if why is not None:
                context.note(cut.node, why)
                del cuts[cut.node]
        while cuts:
            plan = _plan(graph_module, cuts, memory)
            idle = [x for x in cuts if not plan.saves(cuts[x].source)]
            if not idle:
                break
            for node in idle:
                del cuts[node]
        if not cuts:
            return 0
        _carry_out(graph_module, plan, memory)
        erase_dead(graph_module.graph)
        graph_module.recompile()
        return len(cuts)


slice_pushdown = SlicePushdown()


def _cuts(graph_module: GraphModule) -> Iterator[_Cut]:
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        source, index = node.args
        if not isinstance(source, Node) or not isinstance(value_of(source), torch.Tensor):
            continue
        found = _part(value_of(source), index)
        if found is not None:
            yield _Cut(node=node, source=source, part=found[0], then=found[1])


def _part(tensor: torch.Tensor, index: Any) -> tuple[Part, tuple[Any, ...]] | None:
    """Understand an index of whole numbers and slices; None for others, and what takes all."""
    entries = index if isinstance(index, tuple) else (index,)
    if entries.count(Ellipsis) == 1:
        at = entries.index(Ellipsis)
        missing = tensor.dim() - len(entries) + 1
        entries = (*entries[:at], *[WHOLE] * missing, *entries[at + 1 :])
    if len(entries) > tensor.dim() or not all(map(_is_plain, entries)):
        return None
    entries = (*entries, *[WHOLE] * (tensor.dim() - len(entries)))
    part = tuple(_slice(x, n) for x, n in zip(entries, tensor.shape, strict=True))
    if all(x == WHOLE for x in part) or _is_empty(part, tensor.shape):
        return None
    return part, tuple(0 if isinstance(x, int) else WHOLE for x in entries)


def _is_empty(part: Part, sizes: Sequence[Any]) -> bool:
    """Whether nothing is left: of size 1, that is no part of what is broadcast."""
    return any(isinstance(n, int) and not range(n)[x] for x, n in zip(part, sizes, strict=True))


def _is_plain(entry: Any) -> bool:
    if isinstance(entry, slice):
        return all(x is None or type(x) is int for x in (entry.start, entry.stop, entry.step))
    return type(entry) is int


def _slice(entry: Any, size: Any) -> slice:
    if isinstance(entry, int):
        entry = slice(entry, None if entry == -1 else entry + 1)
    assert isinstance(entry, slice)
    takes_all = entry.start in {None, 0} and entry.stop is None and entry.step in {None, 1}
    if isinstance(size, int):
        takes_all = takes_all or range(size)[entry] == range(size)
    return WHOLE if takes_all else entry


def _refusal(cut: _Cut, memory: Memory) -> str | None:
    """Return why a selection stays where it is, or None."""
    if wants_gradient(cut.source) and not is_recorded(cut.node):
        return "no gradient passes it, and one would pass what is computed alone"
    if not _can_be_laid_out(cut, memory):
        return "the caller gets its result, whose layout is not known or shared with another"
    return None


def _can_be_laid_out(cut: _Cut, memory: Memory) -> bool:
    """Whether what is computed alone can be laid out as the selection, or nobody sees it.

    Of two that the caller gets of one value, he may see that they share memory.
    """
    if not memory.returned(cut.node):
        return True
    value = value_of(cut.node)
    if not are_numbers((*value.shape, *value.stride())):
        return False
    overlaps = any(n > 1 and step == 0 for n, step in zip(value.shape, value.stride(), strict=True))
    others = (x for x in cut.source.users if x is not cut.node)
    return not overlaps and not any(map(memory.returned, others))


def _is_dense(tensor: torch.Tensor) -> bool:
    if not are_numbers((*tensor.shape, *tensor.stride())):
        return False
    return tensor.is_contiguous()  # which does not ask about dimensions of size 1


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is needed of each value, and how it is computed."""

    cuts: dict[Node, _Cut]
    parts: dict[Node, Part]
    """Of values of which a part is needed."""
    needs: dict[Node, Needs] = field(default_factory=dict)
    """Of those that can be computed in part."""

    def saves(self, source: Node) -> bool:
        """Whether something is computed in part that a compiler would have computed whole."""
        todo, seen = [source], set()
        while todo:
            node = todo.pop()
            if node in seen or node not in self.needs:
                continue
            seen.add(node)
            if self.needs[node].saves:
                return True
            todo += node.all_input_nodes
        return False


def _plan(graph_module: GraphModule, cuts: dict[Node, _Cut], memory: Memory) -> _Plan:
    """Go from the end to the beginning: what is needed of a value is what its readers need."""
    plan = _Plan(cuts=cuts, parts={})
    for node in reversed(graph_module.graph.nodes):
        part = _needed(node, plan)
        # A selection moves, or is computed in part for another one that moves; not both. The last
        # of several might save more.
        if part is None or node in cuts or memory.mutated(node):
            continue
        plan.parts[node] = part
        try:
            plan.needs[node] = rowwise.needs(node, part)
        except MixedError:
            continue
    return plan


def _needed(node: Node, plan: _Plan) -> Part | None:
    """Return the part of a node that all its readers need; None where they need all or differ."""
    found: Part | None = None
    for user in node.users:
        for part in _parts_read(user, node, plan):
            if part is None or (found is not None and part != found):
                return None
            found = part
    return found if found is not None and any(x != WHOLE for x in found) else None


def _parts_read(user: Node, node: Node, plan: _Plan) -> Iterator[Part | None]:
    if user in plan.cuts:
        yield plan.cuts[user].part
        return
    needs = plan.needs.get(user)
    if needs is None:
        yield None
        return
    for name, value in rowwise.arguments(user).items():
        if value is node:
            yield needs.parts.get(name)


def _carry_out(graph_module: GraphModule, plan: _Plan, memory: Memory) -> None:
    made: dict[Node, Node] = {}
    for node in list(graph_module.graph.nodes):
        if node in plan.cuts:
            _select(plan.cuts[node], made[plan.cuts[node].source], memory)
        elif node in plan.needs:
            made[node] = _in_part(node, plan.needs[node], made)
    for node in reversed(made):  # not all of them are known to be pure
        graph_module.graph.erase_node(node)


def _select(cut: _Cut, part: Node, memory: Memory) -> None:
    selected = part
    if any(x != WHOLE for x in cut.then):
        selected = call_before(cut.node, operator.getitem, part, cut.then)
    if memory.returned(cut.node):
        selected = _laid_out(selected, cut.node)
    replace_node(cut.node, selected)


def _laid_out(selected: Node, place: Node) -> Node:
    """Lay a value out as the one in whose place it comes."""
    old = value_of(place)
    if str(value_of(selected).stride()) == str(old.stride()):
        return selected
    if _is_dense(old):
        return call_before(place, "contiguous", selected)
    whole = call_before(place, "new_empty_strided", selected, tuple(old.shape), old.stride())
    return call_before(place, "copy_", whole, selected)


def _in_part(node: Node, needs: Needs, made: dict[Node, Node]) -> Node:
    given: dict[str, Any] = {**rowwise.arguments(node), **needs.others}
    for name, part in needs.parts.items():
        source = given[name]
        given[name] = made[source] if source in made else _taken(node, source, part)
    args, kwargs = rowwise.called(given, node)
    return call_before(node, node.target, *args, **kwargs)


def _taken(place: Node, source: Node, part: Part) -> Node:
    if all(x == WHOLE for x in part):
        return source
    taken = call_before(place, operator.getitem, source, part)
    if not rowwise.multiplies(place) or _is_dense(value_of(taken)):
        return taken
    # With gaps, each sequence would be a product of its own, which reads the matrix again.
    return call_before(place, "contiguous", taken)
