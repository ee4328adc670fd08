"""Put a replacement where a pattern matched, with everything that a node carries."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from backbay.graph.canonical import canonicalise
from backbay.graph.effects import changes_state, mutates
from backbay.graph.match import Match, NearMiss, Pattern, find, traced
from backbay.graph.values import propagate, refresh, value_of


@dataclass(slots=True)
class Rewritten:
    """What one pattern changed."""

    count: int = 0
    near: list[NearMiss] = field(default_factory=list)


def apply(pattern: Pattern, graph_module: GraphModule) -> Rewritten:
    """Replace every match of a pattern in a torch-level graph.

    The graph is made canonical first. The code of the graph module is made anew where anything
    changed.
    """
    graph = graph_module.graph
    respelled = canonicalise(graph)
    found = find(pattern, graph)
    done = Rewritten(near=found.near)
    place = {node: number for number, node in enumerate(graph.nodes)}
    replaced: dict[Node, Node] = {}
    for match in found.matches:
        refusal = _replace(pattern, graph, match, place, replaced)
        if refusal is None:
            done.count += 1
        else:
            done.near.append(NearMiss(pattern.title, match.outputs[0], refusal))
    if respelled or done.count:
        graph_module.recompile()
    return done


def _replace(
    pattern: Pattern,
    graph: Graph,
    match: Match,
    place: dict[Node, int],
    replaced: dict[Node, Node],
) -> str | None:
    """Replace one match, or say why it can't be."""
    before = _insertion_point(graph, match)
    last = place.get(before, len(place))
    refusal = _refusal(graph, match, place, last)
    if refusal is not None:
        return refusal
    replacement = traced(pattern.replacement)
    inputs = [replaced.get(x, x) if isinstance(x, Node) else x for x in match.inputs]
    placeholders = [n for n in replacement.nodes if n.op == "placeholder"]
    values: dict[Node, Any] = dict(zip(placeholders, inputs, strict=True))
    with graph.inserting_before(before):
        copied = graph.graph_copy(replacement, values)
    outputs = copied if isinstance(copied, (tuple, list)) else (copied,)
    for node in replacement.nodes:
        if node.op not in {"placeholder", "output"}:
            propagate(values[node], match.outputs[0])
    unlike = next(_differences(match.outputs, outputs), None)
    if unlike is not None:
        _remove(
            graph, [values[n] for n in replacement.nodes if n.op not in {"placeholder", "output"}]
        )
        return unlike
    for old, new in zip(match.outputs, outputs, strict=True):
        old.replace_all_uses_with(new)
        refresh(old, new)
        replaced[old] = new
    _remove(graph, match.nodes)
    return None


def _insertion_point(graph: Graph, match: Match) -> Node:
    if len(match.outputs) == 1:
        return match.outputs[0]  # at the first user it may be in another state: out of autocast
    users = {user for node in match.outputs for user in node.users} - set(match.nodes)
    last: Node = next(iter(reversed(graph.nodes)))
    return next((n for n in graph.nodes if n in users), last)


def _refusal(graph: Graph, match: Match, place: dict[Node, int], last: int) -> str | None:
    inputs = [x for x in match.inputs if isinstance(x, Node)]
    if any(place.get(x, -1) >= last for x in inputs):
        return "a result is used before every input is there"
    first = min(place[node] for node in match.nodes)
    for node in graph.nodes:
        if first < place.get(node, -1) < last and (mutates(node) or changes_state(node)):
            return f"{node.name} between its parts changes what they would read"
    return None


def _differences(old: Iterable[Node], new: Iterable[Any]) -> Iterator[str]:
    for before, after in zip(old, new, strict=True):
        was, is_now = value_of(before), value_of(after)
        if not isinstance(was, torch.Tensor) or not isinstance(is_now, torch.Tensor):
            continue
        for what in ("dtype", "device", "shape"):
            had, has = getattr(was, what), getattr(is_now, what)
            if had != has:
                yield f"the replacement's {what} is {has}, not {had}"


def _remove(graph: Graph, nodes: Iterable[Node]) -> None:
    left = set(nodes)
    for node in reversed(graph.nodes):
        if node in left and not node.users:
            graph.erase_node(node)
