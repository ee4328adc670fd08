"""Where a step's time goes, as an icicle: its parts, the user's lines, their kernels.

A kernel that computes several lines stands below the last of them, as in the terminal: what it
takes is not parted among them, since nobody measured that.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backbay.diagnose.calls import Calls
from backbay.diagnose.record import CompiledGraph, WhiteBox
from backbay.diagnose.words import UNCOMPILED, others
from backbay.reporting.wording import begun, counted, milliseconds, short

_SEEN = 0.002
"""Of a step: what is narrower can't be pointed at, and is taken together."""
LABEL = 42
"""Letters of a cell, at most."""
_NO_LINE = "no line of yours is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that takes time, and what it is made of."""

    name: str
    short: str
    """The same, where there is little room."""
    ms: float
    look: str = "part"
    """A class for the page's style."""
    anchor: str = ""
    """An id of the page, where there is more of it."""
    more: str = ""
    """What else is to be said of it."""
    parts: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A part, and where it is drawn."""

    part: Part
    depth: int
    left: float
    """Per cent of the whole width."""
    width: float
    share: float
    """Of the step."""

    @property
    def says(self) -> str:
        """Its numbers, in words."""
        time = f"{milliseconds(self.part.ms, None)} ms, {self.share:.1%} of the step"
        return "; ".join(filter(None, (time, self.part.more)))


def step(inside: WhiteBox, calls: Sequence[Calls]) -> Part:
    """Return a step with all its parts."""
    parts = [_graph(x, [y for y in calls if y.graph is x]) for x in inside.graphs]
    parts += _rest(inside)
    return _part("a step", "step", parts, more="its parts, as they were under the profiler")


def cells(whole: Part) -> list[list[Cell]]:
    """Place a part and what it is made of, a row for each depth."""
    rows: list[list[Cell]] = []
    if whole.ms > 0:
        _place(whole, 0, 0.0, whole.ms, rows)
    return rows


def _place(part: Part, depth: int, left: float, whole_ms: float, rows: list[list[Cell]]) -> None:
    if depth == len(rows):
        rows.append([])
    share = part.ms / whole_ms
    rows[depth].append(
        Cell(part=part, depth=depth, left=100 * left, width=100 * share, share=share)
    )
    for inner in _gathered(part.parts, whole_ms):
        _place(inner, depth + 1, left, whole_ms, rows)
        left += inner.ms / whole_ms


def _gathered(parts: Sequence[Part], whole_ms: float) -> Iterator[Part]:
    """Yield parts, the longest first, with those that are too narrow as one."""
    ordered = sorted((x for x in parts if x.ms > 0), key=lambda x: -x.ms)
    wide = [x for x in ordered if x.ms >= _SEEN * whole_ms]
    narrow = ordered[len(wide) :]
    yield from wide
    if len(narrow) == 1:
        yield narrow[0]
    elif narrow:
        name = counted(len(narrow), "other")
        yield Part(name=name, short=name, ms=sum(x.ms for x in narrow))


def _graph(graph: CompiledGraph, calls: Sequence[Calls]) -> Part:
    by_line = defaultdict[str, list[Calls]](list)
    for one in calls:
        by_line[one.line].append(one)
    lines = [_line(line, found) for line, found in by_line.items()]
    name = f"graph {graph.number}, {graph.direction}"
    return _part(name, f"graph {graph.number}", lines)


def _line(line: str, calls: Sequence[Calls]) -> Part:
    kernels = [_kernel(x) for x in calls if x.ms]
    if not line:
        return _part(_NO_LINE, "no line", kernels)
    place, _, code = short(line).partition(": ")
    return _part(begun(code, LABEL) or place, place.rpartition("/")[2], kernels, more=short(line))


def _kernel(calls: Calls) -> Part:
    lines, limit = calls.first.lines, calls.of_limit
    more = [
        calls.first.work,
        counted(len(calls.kernels), "call") if len(calls.kernels) > 1 else "",
        f"{limit:.0%} of the limit" if limit is not None else "",
        f"computes {len(lines)} lines" if len(lines) > 1 else "",
    ]
    name = calls.function
    return Part(
        name=name,
        short=name.removeprefix("extern_kernels.").removeprefix("torch.ops."),
        ms=calls.ms or 0.0,
        look=f"work-{calls.first.work}",
        anchor=calls.anchor,
        more=", ".join(filter(None, more)),
    )


def _rest(inside: WhiteBox) -> Iterator[Part]:
    outside = [Part(name=x.name, short=x.name, ms=x.ms, look="outside") for x in inside.outside]
    for name, ms in others(inside.step):
        if name == UNCOMPILED:
            yield _part(name, name, outside, look="outside")
        else:
            yield Part(name=name, short=name.rpartition(" ")[2], ms=ms, look="host")


def _part(
    name: str, less: str, parts: Iterable[Part], *, more: str = "", look: str = "part"
) -> Part:
    inner = tuple(parts)
    whole_ms = sum(x.ms for x in inner)
    return Part(name=name, short=less, ms=whole_ms, look=look, more=more, parts=inner)
