"""What of a graph is drawn: a box a node; of a large graph, a box for each stretch in one module.

A stretch is a run of nodes that follow each other in the graph and come from the same module.
Contracting runs of a topological order can't make a cycle; contracting whole modules could.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backbay.explain.record import NodeRecord, StageRecord
from backbay.reporting.wording import counted

MOST = 120
"""Boxes in one drawing: what a reader can still follow with the eye."""

FEW = 40
"""Nodes of a graph in which parameters have boxes of their own: in a larger one they are in the
way."""

_LEAVES = {"placeholder", "get_attr"}
_STATE = re.compile("_parameters_|_buffers_")
_PARTS = "a parameter that one node uses is drawn with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box of a drawing."""

    name: str
    label: str
    below: str
    """A second, smaller line."""
    title: str
    """What a reader sees who points at it."""
    look: tuple[str, ...]
    """Classes for the page's style."""
    inputs: tuple[str, ...]
    anchor: str = ""
    """An id of the page, where there is more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn of a graph, and what is not."""

    boxes: tuple[Box, ...]
    remark: str
    """Why not every node has a box; empty where each has."""


def picture(
    nodes: Sequence[NodeRecord],
    groups: Sequence[Sequence[str]] = (),
    marks: Mapping[str, str] | None = None,
) -> Picture:
    """Choose what to draw of a graph.

    Args:
        nodes: the graph, in order.
        groups: fusable groups, by names of nodes: each gets a colour.
        marks: name of a node to ``added``, ``removed`` or ``changed``.
    """
    looks = _looks(groups, marks or {})
    if len(nodes) <= FEW:
        return Picture(boxes=tuple(box(x, looks.get(x.name, ())) for x in nodes), remark="")
    kept, parts = without_parameters(nodes)
    if len(kept) <= MOST:
        boxes = [box(x, looks.get(x.name, ()), parts.get(x.name, ())) for x in kept]
        return Picture(boxes=tuple(boxes), remark=_PARTS if parts else "")
    deepest = max(x.module.count(".") + 1 for x in nodes)
    for depth in range(deepest, 0, -1):
        boxes = _stretches(nodes, depth, looks)
        if len(boxes) <= MOST:
            break
    remark = f"{counted(len(nodes), 'node')}: drawn as stretches of nodes in one module"
    if len(boxes) > MOST:
        remark += f", and of {counted(len(boxes), 'stretch', 'stretches')} "
        remark += f"the first {MOST}"
    return Picture(boxes=tuple(boxes[:MOST]), remark=f"{remark}; the table below has every node")


def marks(
    before: Iterable[NodeRecord], after: Iterable[NodeRecord]
) -> tuple[dict[str, str], dict[str, str]]:
    """Which nodes passes removed, added and changed: for the graph before, and for it after."""

    def drawn(node: NodeRecord) -> tuple[object, ...]:
        return node.op, node.target, node.inputs, node.shape, node.dtype

    old, new = {x.name: x for x in before}, {x.name: x for x in after}
    gone = {name: "removed" for name in old if name not in new}
    made = {name: "added" for name in new if name not in old}
    changed = {x: "changed" for x in old.keys() & new.keys() if drawn(old[x]) != drawn(new[x])}
    return gone | changed, made | changed


def outline(nodes: Sequence[NodeRecord], stages: Sequence[StageRecord] = ()) -> tuple[object, ...]:
    """Return what drawings show of a graph, without sizes; symbols are inputs of their own."""
    taken = {x.name for x in nodes if x.op == "placeholder" and not x.dtype}
    parts = ((x.name, x.target, tuple(y for y in x.inputs if y not in taken)) for x in nodes)
    passes = tuple((x.graph, *((y.name, y.changes, y.error) for y in x.passes)) for x in stages)
    return (*(x for x in parts if x[0] not in taken), passes)


def _looks(
    groups: Sequence[Sequence[str]], marked: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    looks: dict[str, tuple[str, ...]] = {
        name: (f"group-{n % 6}",) for n, group in enumerate(groups) for name in group
    }
    for name, mark in marked.items():
        looks[name] = (*looks.get(name, ()), mark)
    return looks


def without_parameters(
    nodes: Sequence[NodeRecord],
) -> tuple[list[NodeRecord], dict[str, list[NodeRecord]]]:
    """Take out the parameters and buffers that one node uses; return them by that node."""
    users = Counter(x for node in nodes for x in node.inputs)
    state = {
        # Dynamo's names; AOTAutograd's say no more than that it is an input.
        x.name: x
        for x in nodes
        if users[x.name] == 1
        and (x.op == "get_attr" or (x.op == "placeholder" and _STATE.search(x.name)))
    }
    parts = {n.name: [state[x] for x in n.inputs if x in state] for n in nodes}
    kept = [x for x in nodes if x.name not in state]
    return kept, {name: found for name, found in parts.items() if found}


def box(node: NodeRecord, look: tuple[str, ...] = (), parts: Sequence[NodeRecord] = ()) -> Box:
    """Draw a node, with the parameters that it alone uses."""
    short = node.target.rpartition("aten.")[2]
    is_plain = node.op in _LEAVES or node.name.startswith(short.partition(".")[0])
    first = f"{node.name} = {node.target}({', '.join(node.inputs)})"
    lines = filter(None, (first, _kind(node), node.module, node.line))
    return Box(
        name=node.name,
        label=node.name if is_plain else f"{node.name} = {short}",
        below=_kind(node) or node.op,
        title="\n".join([*lines, *(f"{x.name}: {_kind(x)}" for x in parts)]),
        look=(node.op, *look),
        inputs=node.inputs,
    )


def _kind(node: NodeRecord) -> str:
    """Word what a node gives."""
    return " ".join(filter(None, (node.dtype, node.shape)))


def _stretches(
    nodes: Sequence[NodeRecord], depth: int, looks: Mapping[str, tuple[str, ...]]
) -> list[Box]:
    inner = [x for x in nodes if x.op not in _LEAVES]
    runs = [
        list(run)
        for _, run in itertools.groupby(inner, key=lambda x: (x.op == "output", _prefix(x, depth)))
    ]
    home = {node.name: run[0].name for run in runs for node in run}
    for leaf in (x for x in nodes if x.op in _LEAVES):
        users = {home[x.name] for x in inner if leaf.name in x.inputs}
        # A parameter of one stretch is part of it; what several read stands by itself.
        home[leaf.name] = users.pop() if len(users) == 1 else leaf.name
    alone = [x for x in nodes if x.op in _LEAVES and home[x.name] == x.name]
    leaves = [box(x, looks.get(x.name, ())) for x in alone]
    return [*leaves, *(_stretch(run, depth, home, looks) for run in runs)]


def _stretch(
    run: Sequence[NodeRecord],
    depth: int,
    home: Mapping[str, str],
    looks: Mapping[str, tuple[str, ...]],
) -> Box:
    if len(run) == 1:
        alone = box(run[0], looks.get(run[0].name, ()))
        return dataclasses.replace(alone, inputs=_homes(run, home))
    found = dict.fromkeys(x for node in run for x in looks.get(node.name, ()))
    marked = tuple(x for x in found if not x.startswith("group-"))
    return Box(
        name=run[0].name,
        label=_prefix(run[0], depth) or "outside of modules",
        below=", ".join(f"{n}x {x}" for x, n in Counter(x.target for x in run).most_common()),
        title="\n".join(f"{x.name} = {x.target}: {_kind(x)}  {x.line}" for x in run),
        look=("stretch", *marked),
        inputs=_homes(run, home),
    )


def _homes(run: Sequence[NodeRecord], home: Mapping[str, str]) -> tuple[str, ...]:
    found = dict.fromkeys(home[x] for node in run for x in node.inputs)
    return tuple(x for x in found if x != home[run[0].name])


def _prefix(node: NodeRecord, depth: int) -> str:
    return ".".join(node.module.split(".")[:depth])
