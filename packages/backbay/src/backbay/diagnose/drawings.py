"""Graphs as they are drawn: what Inductor runs, kernel by kernel, and what Dynamo handed over.

Layers that repeat are folded. Everything is drawn too, as far as a reader can still follow it.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from backbay.diagnose.calls import Calls, without_number
from backbay.diagnose.folding import stretches
from backbay.diagnose.record import CompiledGraph, KernelRecord
from backbay.explain.boxes import Box, Picture, box, picture, without_parameters
from backbay.explain.drawing import svg
from backbay.explain.record import GraphRecord, NodeRecord
from backbay.reporting.wording import counted, milliseconds, short

MOST = 300
"""Boxes of one drawing."""
_NUMBER = re.compile(r"\d+")
_MOST_NAMED = 200
"""Boxes whose names a fold lists."""
_Item = TypeVar("_Item", KernelRecord, NodeRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One graph, drawn with its repetitions folded, and whole."""

    title: str
    folded: str
    """An ``<svg>``; empty where nothing repeats."""
    whole: str
    """An ``<svg>``; empty where that would be more than a reader can follow."""
    remark: str
    """What is not drawn; empty where everything is."""


def kernels(graph: CompiledGraph, calls: Sequence[Calls]) -> Drawing:
    """Draw what Inductor runs: a box for each kernel, edges from those whose results it reads."""
    anchors = {x.name: one.anchor for one in calls if one.graph is graph for x in one.kernels}
    boxes, known = list[Box](), set[str]()
    for kernel in graph.kernels:
        boxes.append(_kernel(kernel, anchors.get(kernel.name, ""), known))
        known.add(kernel.name)
    keys = [(without_number(x.name), x.lines) for x in graph.kernels]

    def said(folded: Sequence[KernelRecord]) -> str:
        return f"{milliseconds(sum(x.ms or 0.0 for x in folded), None)} ms"

    title = f"Graph {graph.number} ({graph.direction}): its kernels, as Inductor runs them"
    return _drawing(title, boxes, _folded(graph.kernels, keys, boxes, "kernel", said))


def nodes(graph: GraphRecord, calls: Sequence[Calls]) -> Drawing:
    """Draw what Dynamo handed over: a box for each node, which leads to the kernels of its line."""
    title = f"Graph {graph.number}: its nodes, as Dynamo hands them over"
    kept, parts = without_parameters(graph.nodes)
    by_line = _by_line(calls)
    boxes = [_node(x, parts.get(x.name, ()), by_line.get(x.line, ())) for x in kept]
    keys = [(x.op, x.target, x.shape, _NUMBER.sub("", x.module)) for x in kept]
    folded = _folded(kept, keys, boxes, "node", _modules)
    drawing = _drawing(title, boxes, folded)
    if drawing.folded or drawing.whole:
        return drawing
    stretched = picture(graph.nodes)
    return Drawing(
        title=title, folded="", whole=svg(stretched, title), remark=_without_table(stretched)
    )


def _without_table(stretched: Picture) -> str:
    return stretched.remark.partition(";")[0]


def _drawing(title: str, boxes: Sequence[Box], folded: Sequence[Box]) -> Drawing:
    is_folded = len(folded) < len(boxes)
    remark = ""
    if len(boxes) > MOST:
        remark = f"one by one, the {len(boxes):,} would be too many to follow: --json has them"
    return Drawing(
        title=title,
        folded=_svg(folded, f"{title}, repetitions folded") if is_folded else "",
        whole=_svg(boxes, title),
        remark=remark,
    )


def _svg(boxes: Sequence[Box], title: str) -> str:
    fits = 0 < len(boxes) <= MOST
    return svg(Picture(boxes=tuple(boxes), remark=""), title) if fits else ""


def _folded(
    items: Sequence[_Item],
    keys: Sequence[Hashable],
    boxes: Sequence[Box],
    noun: str,
    said: Callable[[Sequence[_Item]], str],
) -> list[Box]:
    """Return boxes of which each that only repeats those before it is part of one.

    Args:
        items: what is drawn.
        keys: what two of them have in common that count as the same.
        boxes: one for each.
        noun: what they are.
        said: words what is folded, in a few words.
    """
    found, home = list[tuple[Box, set[str]]](), dict[str, str]()
    for part in stretches(keys):
        members = boxes[part.begin : part.end]
        names = {x.name for x in members}
        if not part.times:
            found += ((x, {x.name}) for x in members)
            home |= {x: x for x in names}
            continue
        length = len(members) // part.times
        again = "once more" if part.times == 1 else f"{part.times} times more"
        first = members[0].name
        home |= dict.fromkeys(names, first)
        inputs = dict.fromkeys(y for x in members for y in x.inputs)
        fold = Box(
            name=first,
            label=f"the {counted(length, noun)} before, {again}",
            below=said(items[part.begin : part.end]),
            title="\n".join(_names(members, boxes[part.begin - length : part.begin])),
            look=("fold",),
            inputs=tuple(inputs),
        )
        found.append((fold, names))
    return [_rewired(x, names, home) for x, names in found]


def _rewired(one: Box, own: set[str], home: Mapping[str, str]) -> Box:
    inputs = dict.fromkeys(home[x] for x in one.inputs if x in home and x not in own)
    return dataclasses.replace(one, inputs=tuple(inputs))


def _names(members: Sequence[Box], like: Sequence[Box]) -> Iterator[str]:
    yield f"repeats {', '.join(x.name for x in like)}; folded here:"
    yield from (x.name for x in members[:_MOST_NAMED])
    if len(members) > _MOST_NAMED:
        yield f"and {len(members) - _MOST_NAMED:,} more"


def _modules(folded: Sequence[NodeRecord]) -> str:
    """Word which modules are folded: ``layers.1 to layers.11``."""
    parted = [x.module.split(".") for x in folded if x.module]
    if not parted:
        return ""
    depth = max((n for x in parted for n, y in enumerate(x, 1) if y.isdigit()), default=1)
    numbered = [".".join(x[:depth]) for x in parted if len(x) >= depth]
    return numbered[0] if numbered[0] == numbered[-1] else f"{numbered[0]} to {numbered[-1]}"


def _kernel(kernel: KernelRecord, anchor: str, before: Collection[str]) -> Box:
    name = without_number(kernel.name)
    time = f"{milliseconds(kernel.ms, None)} ms" if kernel.ms is not None else "not timed"
    share = "" if kernel.share is None else f", {kernel.share:.1%} of the time in kernels"
    lines = [
        f"{kernel.name}: {time}{share}",
        *map(short, kernel.lines),
        f"computes {', '.join(kernel.operators)}" if kernel.operators else "",
        *(f"not fused with {x.kernel}: {x.reason}" for x in kernel.not_fused),
    ]
    return Box(
        name=kernel.name,
        label=name.removeprefix("extern_kernels.").removeprefix("torch.ops."),
        below=f"{kernel.work}, {time}",
        title="\n".join(filter(None, lines)),
        look=(f"work-{kernel.work}",),
        # What is written later is not what it reads: another result, in the same buffer.
        inputs=tuple(x.kernel for x in kernel.not_fused if x.kernel in before),
        anchor=anchor,
    )


def _node(node: NodeRecord, parts: Sequence[NodeRecord], calls: Sequence[Calls]) -> Box:
    plain = box(node, (), parts)
    line = [f"its line is computed by {', '.join(x.function for x in calls)}"] if calls else []
    return dataclasses.replace(
        plain,
        title="\n".join([plain.title, *line]),
        look=(*plain.look, *(f"work-{x.first.work}" for x in calls[:1])),
        anchor=calls[0].anchor if calls else "",
    )


def _by_line(calls: Sequence[Calls]) -> dict[str, list[Calls]]:
    found: dict[str, list[Calls]] = {}
    for one in calls:
        for line in one.first.lines:
            found.setdefault(line, []).append(one)
    return found
