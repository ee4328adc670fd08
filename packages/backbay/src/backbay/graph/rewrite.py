"""Put nodes into a graph with everything that a node carries: single ones, or a pattern's result.

A pass calls `call_before` and `replace_node`; what it puts in at a place that it then leaves alone
is taken back by `revocable`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from backbay.graph.canonical import canonicalise
from backbay.graph.effects import changes_state, is_pure, mutates
from backbay.graph.match import Match, Nearest, NearMiss, Pattern, find, traced
from backbay.graph.values import carry, propagate, refresh, value_of

Target = Callable[..., Any]

FROZEN = "_frozen_"
"""How attributes begin that hold parameters and buffers which a backend freezes."""


def call_before(place: Node, target: Target | str, /, *arguments: Any, **keywords: Any) -> Node:
    """Insert a call before a node, with the metadata of that node and a value of its own.

    Args:
        place: the node.
        target: a function, or the name of a method of the first argument.
        arguments: of the call.
        keywords: likewise.
    """
    graph: Graph = place.graph
    op = "call_method" if isinstance(target, str) else "call_function"
    with graph.inserting_before(place):
        made = graph.create_node(op, target, arguments, keywords)
    propagate(made, place)
    return made


def put_before(place: Node, value: Any, target: Target, *arguments: Any) -> Node:
    """Insert a call before a node of Dynamo's graph, whose value is known already."""
    with place.graph.inserting_before(place):
        made = place.graph.call_function(target, arguments)
    carry(made, place)
    made.meta["example_value"] = value
    return made


def cast_before(place: Node, node: Node, dtype: torch.dtype) -> Node:
    """Insert a cast of a node before another one, where it has another dtype."""
    if value_of(node).dtype == dtype:
        return node
    return call_before(place, torch.ops.aten._to_copy.default, node, dtype=dtype)  # noqa: SLF001 (its name)


def layout(value: torch.Tensor) -> tuple[Any, ...]:
    """Return what two values must have in common for one to be laid out as the other."""
    # Sizes as text: comparing symbols would guard on the answer. Of strides those that symbols
    # have now: one that is made in two ways is written in two.
    strides = tuple(x if isinstance(x, int) else x.node.hint for x in value.stride())
    return str(tuple(value.shape)), strides, value.dtype, value.device


def replace_node(old: Node, new: Node) -> None:
    """Use one node where another was used, and erase that other."""
    old.replace_all_uses_with(new)
    refresh(old, new)
    old.graph.erase_node(old)


def same_kind(one: Any, other: Any) -> bool:
    """Return whether two nodes' values can stand for each other, to autograd and to views, too."""
    a, b = value_of(one), value_of(other)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return _kind_of(a) == _kind_of(b)


def _kind_of(value: torch.Tensor) -> tuple[Any, ...]:
    # Sizes as text: comparing symbols would guard on the answer.
    where = (str(tuple(value.shape)), str(value.stride()))
    return (value.dtype, value.device, value.layout, value.requires_grad, *where)


def hold(graph_module: GraphModule, value: torch.Tensor, prefix: str) -> str:
    """Register a constant with a graph; return the name of its attribute."""
    taken = {name for name, _ in graph_module.named_buffers(recurse=False)}
    name = next(x for n in range(len(taken) + 1) if (x := f"{prefix}{n}") not in taken)
    graph_module.register_buffer(name, value)
    sources = getattr(graph_module, "_param_name_to_source", None)
    if isinstance(sources, dict):
        from torch._dynamo.source import ConstantSource  # noqa: PLC0415 (imports Dynamo)

        sources[name] = ConstantSource(source_name=name)  # AOTAutograd demands one of each buffer
    return name


@contextlib.contextmanager
def revocable(graph: Graph) -> Iterator[None]:
    """Erase the nodes that are made in a block if the block raises."""
    made: list[Node] = []
    make, own = graph.create_node, graph.__dict__.get("create_node")

    def noted(*arguments: Any, **keywords: Any) -> Node:
        made.append(make(*arguments, **keywords))
        return made[-1]

    graph.create_node = noted  # type: ignore[method-assign] # of this one graph, until the end
    try:
        yield
    except BaseException:
        for node in reversed(made):
            if not node._erased and not node.users:  # noqa: SLF001 (nothing else tells)
                graph.erase_node(node)
        raise
    finally:
        if own is None:
            del graph.create_node
        else:
            graph.create_node = own  # type: ignore[method-assign] # likewise


def erase_dead(graph: Graph) -> int:
    """Erase nodes without users that do nothing else; return how many those are."""
    # Not fx's eliminate_dead_code: by itself it takes x.add_(1), F.relu(x, True) and unknown
    # functions for dead. Told what is not, it still enters submodules with its own notion.
    count = 0
    for node in reversed(graph.nodes):
        if not node.users and is_pure(node):
            graph.erase_node(node)
            count += 1
    return count


def bound(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return a call's arguments by name; what it leaves out is left out.

    Args:
        node: the call.
        names: of the function's parameters, in order.
    """
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


@dataclass(slots=True)
class Rewritten:
    """What one pattern changed."""

    count: int = 0
    near: list[NearMiss] = field(default_factory=list)


def apply(
    pattern: Pattern, graph_module: GraphModule, *, nearest: Nearest | None = None
) -> Rewritten:
    """Replace every match of a pattern in a torch-level graph.

    The graph is made canonical first. The code of the graph module is made anew where anything
    changed.

    Args:
        pattern: what to find, and what takes its place.
        graph_module: changed in place.
        nearest: as in `match.find`.
    """
    graph = graph_module.graph
    respelled = canonicalise(graph)
    found = find(pattern, graph, nearest=nearest)
    done = Rewritten(near=found.near)
    place = {node: number for number, node in enumerate(graph.nodes)}
    replaced: dict[Node, Node] = {}
    for match in found.matches:
        refusal = _replace(pattern, graph, match, place, replaced)
        if refusal is None:
            done.count += 1
        else:
            done.near.append(NearMiss.at(match.outputs[0], pattern.title, refusal))
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
    """Replace one match; return why it can't be, or None."""
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
    made = [values[n] for n in replacement.nodes if n.op not in {"placeholder", "output"}]
    for node in made:
        propagate(node, match.outputs[0])
    unlike = next(_differences(match.outputs, outputs), None)
    if unlike is not None:
        _remove(graph, made)
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
