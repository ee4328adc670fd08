"""An explanation in the terminal: what happened first, what to change next, then the details.

What would run over pages (every guard, a long diff) is cut with a word; JSON and the page have it
whole.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from backbay.explain import words
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    Explanation,
    GraphRecord,
    GuardRecord,
    NearMissRecord,
    PassRecord,
    ProblemRecord,
    StageRecord,
)
from backbay.reporting.wording import plain, short

_MOST_GRAPHS = 16
_MOST_NEAR = 8
_MOST_GUARDS = 6
_MOST_DIFF_LINES = 30
_MOST_RECOMPILES = 6
_TELLING = ("shapes", "tensors", "values")
"""Groups of guards that are listed; of the others the terminal gets the number."""
_REST = "--json and --html have them all"
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def text(explanation: Explanation) -> RenderableType:
    """Lay an explanation out for the terminal."""
    settings = explanation.settings
    head = Text(plain(settings.workload), style="bold")
    head.append(
        f"  {settings.mode}  {plain(settings.backend or 'no backend')}", style="not bold dim"
    )
    parts: list[RenderableType] = [head, Text(plain(explanation.sentence))]
    if explanation.problem is not None:
        parts += _section("Error", _problem(explanation.problem))
    parts += _section("Graphs", _graphs(explanation.graphs))
    parts += _section("Graph breaks", _breaks(explanation.breaks))
    parts += _section("Passes", _passes(explanation.graphs))
    parts += _section("Guards", _guards(explanation.graphs))
    parts += _section("Calls", _calls(explanation.calls))
    parts += [_line(f"note: {note}", "dim") for note in explanation.notes]
    return Group(*parts)


def _section(title: str, found: Iterable[RenderableType]) -> list[RenderableType]:
    inner = list(found)
    if not inner:
        return []
    return [Text(), Text(title, style="bold"), Padding(Group(*inner), (0, 0, 0, 2))]


def _problem(problem: ProblemRecord) -> Iterator[RenderableType]:
    who = "the model itself, uncompiled" if problem.stage == "eager" else "compiled"
    yield _line(f"{who}: {problem.error}", "red")
    if problem.line:
        yield _line(f"at {short(problem.line)}")
    if problem.raised_at:
        yield _line(f"raised at {short(problem.raised_at)}")


def _graphs(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    if not graphs:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("graph", "call", "ops", "groups"):
        table.add_column(title, no_wrap=True)
    table.add_column("function", overflow="fold")
    for graph in graphs[:_MOST_GRAPHS]:
        dynamic = "".join(f"; {k} = {v}" for k, v in graph.dynamic.items())
        calls, groups = sum(graph.operators.values()), len(graph.groups)
        what = f"{short(graph.function)}{dynamic}"
        cells = (graph.number, graph.call, calls, groups, what)
        table.add_row(*(Text(plain(str(x))) for x in cells))
    yield table
    yield from _more(len(graphs) - _MOST_GRAPHS, "graph")
    for graph in graphs[:_MOST_GRAPHS]:
        if graph.call == 0:
            yield _line(f"graph {graph.number}, {words.size_of(graph)}: {words.operators(graph)}")


def _breaks(breaks: Sequence[BreakRecord]) -> Iterator[RenderableType]:
    for number, one in enumerate(breaks, 1):
        yield _line(f"{number}. {one.reason}", "yellow")
        yield _indented(f"at {short(one.line)}", "bold")
        if one.skipped:
            yield _indented(f"all of {short(one.function) or 'the function'} runs eagerly")
        yield _indented(f"why: {one.explanation}")
        for hint in one.hints:
            yield _indented(f"change: {hint}", "green")
        if one.url:
            yield _indented(one.url, "dim")


def _passes(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    shown = [x for x in graphs if x.call == 0 and x.stages]
    if not shown:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("graph", "of", "pass", "level", "did", "near misses"):
        table.add_column(title, no_wrap=True)
    for graph, stage, one in _each(shown):
        cells = (graph.number, stage.graph, one.name, one.level, words.did(one), len(one.near))
        table.add_row(*(Text(plain(str(x))) for x in cells))
    yield table
    yield from _near_misses(shown)
    for graph, stage, one in _each(shown):
        yield from _detail(graph, stage, one)


def _each(graphs: Iterable[GraphRecord]) -> Iterator[tuple[GraphRecord, StageRecord, PassRecord]]:
    return ((g, stage, one) for g in graphs for stage in g.stages for one in stage.passes)


def _near_misses(graphs: Iterable[GraphRecord]) -> Iterator[RenderableType]:
    found: dict[tuple[str, str, str], list[NearMissRecord]] = {}
    for _, _, one in _each(graphs):
        for miss in one.near:
            found.setdefault((one.name, miss.pattern, miss.reason), []).append(miss)
    for (name, pattern, reason), misses in list(found.items())[:_MOST_NEAR]:
        nodes = ", ".join(dict.fromkeys(x.node for x in misses))
        yield _line(f"{name} nearly did: {pattern} at {nodes}: {reason}", "yellow")
        for line in dict.fromkeys(x.line for x in misses if x.line):
            yield _indented(f"at {short(line)}")
    yield from _more(len(found) - _MOST_NEAR, "near miss", "near misses")


def _detail(graph: GraphRecord, stage: StageRecord, one: PassRecord) -> Iterator[RenderableType]:
    if one.error:
        yield _line(f"{one.name} failed: {one.error}", "red")
    for key, value in one.detail.items():
        yield _line(f"{one.name}: {key}: {value}")
    if not one.diff or not one.changes:
        return
    yield Text()
    yield _line(f"graph {graph.number}, {stage.graph}: {one.name}", "bold")
    lines = one.diff.splitlines()[2:]  # the first two name the sides
    for line in lines[:_MOST_DIFF_LINES]:
        yield Text(line, style=_COLOURS.get(line[:1], "dim"), no_wrap=True, overflow="ellipsis")
    yield from _more(len(lines) - _MOST_DIFF_LINES, "line")


def _guards(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    for graph in graphs:
        if graph.call != 0 or not graph.guards:
            continue
        parted = words.by_group(graph.guards)
        numbers = ", ".join(f"{group} {len(found)}" for group, found in parted.items())
        yield _line(f"graph {graph.number}: {words.counted(len(graph.guards), 'guard')}: {numbers}")
        telling = [x for group in _TELLING for x in parted.get(group, []) if not _is_state(x)]
        for one in telling[:_MOST_GUARDS]:
            said = one.says if one.source in one.says else f"{one.source}: {one.says}"
            yield _indented(said, "dim")
        yield from _more(len(telling) - _MOST_GUARDS, "guard")


def _is_state(guard: GuardRecord) -> bool:
    """Return whether a guard is of a parameter or buffer, which change less than inputs do."""
    return "_parameters[" in guard.source or "_buffers[" in guard.source


def _calls(calls: Sequence[CallRecord]) -> Iterator[RenderableType]:
    told = set[str]()
    for number, call in enumerate(calls):
        said = f"{number}. {call.name}: {words.counted(call.graphs, 'graph')} compiled"
        yield _line(said if not call.problem else f"{said}, then {call.problem.error}")
        for one in call.recompiles[:_MOST_RECOMPILES]:
            reason = one.reasons[0] if one.reasons else None
            why = reason.failed if reason else "torch gives no reason"
            yield _indented(f"again {short(one.function)}: {why}", "yellow")
            if reason is not None and reason.line:
                yield _indented(f"  at {short(reason.line)}")
            if reason is not None and reason.hint and reason.hint not in told:
                told.add(reason.hint)
                yield _indented(f"  {reason.hint}", "green")
            if one.dynamic:
                sizes = ", ".join(f"{v} ({k})" for k, v in one.dynamic.items())
                yield _indented(f"  automatic dynamic shapes: from now on any {sizes}")
        yield from _more(len(call.recompiles) - _MOST_RECOMPILES, "recompile")


def _more(count: int, noun: str, plural: str | None = None) -> Iterator[RenderableType]:
    if count > 0:
        word = noun if count == 1 else plural or f"{noun}s"
        yield _line(f"and {count:,} more {word}: {_REST}", "dim")


def _line(said: str, style: str = "") -> Text:
    return Text(plain(said), style=style)


def _indented(said: str, style: str = "") -> RenderableType:
    lead = len(said) - len(said.lstrip())
    return Padding(_line(said, style), (0, 0, 0, 3 + lead))
