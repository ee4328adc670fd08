"""An explanation in the terminal: what happened first, what to change next, then the details.

What would run over pages (every guard, a long diff) is cut with a word; JSON and the page have it
whole.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.errors import escaped, plain
from backbay.explain import words
from backbay.explain.record import (
    CallRecord,
    Explanation,
    FindingRecord,
    GraphRecord,
    PassRecord,
    ProblemRecord,
    StageRecord,
)
from backbay.reporting.reasons import plainly
from backbay.reporting.terminal import add_row, indented, line, table
from backbay.reporting.wording import counted, short

_MOST_FINDINGS = 24
_MOST_GRAPHS = 16
_MOST_GUARDS = 6
_MOST_DIFF_LINES = 30
_MOST_RECOMPILES = 6
_TELLING = ("shapes", "tensors", "values")
"""Groups of guards that are listed; of the others the terminal gets the number."""
_REST = "--json and --html have them all"
_SEVERITIES = {"error": "red", "warning": "yellow", "note": ""}
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def text(explanation: Explanation) -> RenderableType:
    """Lay an explanation out for the terminal."""
    settings = explanation.settings
    head = Text(plain(settings.workload), style="bold")
    head.append(f"  {settings.mode}  {plain(settings.asked)}", style="not bold dim")
    parts: list[RenderableType] = [head, Text(plain(explanation.sentence))]
    if explanation.problem is not None:
        parts += _section("Error", _problem(explanation.problem))
    parts += _section("Findings", _findings(explanation.findings))
    parts += _section("Graphs", _graphs(explanation.graphs))
    parts += _section("Passes", _passes(explanation.graphs))
    parts += _section("Guards", _guards(explanation.graphs))
    parts += _section("Calls", _calls(explanation.calls))
    parts += [line(f"note: {note}", "dim") for note in explanation.notes]
    return Group(*parts)


def _section(title: str, found: Iterable[RenderableType]) -> list[RenderableType]:
    inner = list(found)
    if not inner:
        return []
    return [Text(), Text(title, style="bold"), Padding(Group(*inner), (0, 0, 0, 2))]


def _problem(problem: ProblemRecord) -> Iterator[RenderableType]:
    who = "the model itself, uncompiled" if problem.stage == "eager" else "compiled"
    yield line(f"{who}: {problem.error}", "red")
    if problem.line:
        yield line(f"at {short(problem.line)}")
    if problem.raised_at:
        yield line(f"raised at {short(problem.raised_at)}")


def _graphs(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    if not graphs:
        return
    made = table("graph", "call", "ops", "groups", "function", folded="function")
    for graph in graphs[:_MOST_GRAPHS]:
        dynamic = "".join(f"; {k} = {plainly(v)}" for k, v in graph.dynamic.items())
        calls, groups = sum(graph.operators.values()), len(graph.groups)
        what = f"{short(graph.function)}{dynamic}"
        cells = (graph.number, graph.call + 1, calls, groups, what)
        add_row(made, cells)
    yield made
    yield from _more(len(graphs) - _MOST_GRAPHS, "graph")
    for graph in graphs[:_MOST_GRAPHS]:
        if graph.call == 0:
            yield line(f"graph {graph.number}, {words.size_of(graph)}: {words.operators(graph)}")


def _findings(findings: Sequence[FindingRecord]) -> Iterator[RenderableType]:
    for one in findings[:_MOST_FINDINGS]:
        head = f"{one.code} {one.severity}: {one.message}{words.how_often(one)}"
        yield line(head, _SEVERITIES[one.severity])
        if one.line:
            yield indented(f"at {short(one.line)}", "bold", by=3)
        for fix in one.fixes:
            yield indented(f"change: {fix}", "green", by=3)
    yield from _more(len(findings) - _MOST_FINDINGS, "finding")
    codes = list(dict.fromkeys(x.code for x in findings))
    if codes:
        yield line(f"backbay explain {codes[0]} says what it is and why it costs", "dim")


def _passes(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    shown = [x for x in graphs if x.call == 0 and x.stages]
    if not shown:
        return
    made = table("graph", "of", "pass", "level", "did", "near misses")
    for graph, stage, one in _each(shown):
        cells = (graph.number, stage.graph, one.name, one.level, words.did(one), len(one.near))
        add_row(made, cells)
    yield made
    for graph, stage, one in _each(shown):
        yield from _detail(graph, stage, one)


def _each(graphs: Iterable[GraphRecord]) -> Iterator[tuple[GraphRecord, StageRecord, PassRecord]]:
    return ((g, stage, one) for g in graphs for stage in g.stages for one in stage.passes)


def _detail(graph: GraphRecord, stage: StageRecord, one: PassRecord) -> Iterator[RenderableType]:
    if one.error:
        yield line(f"{one.name} failed: {one.error}", "red")
    for key, value in one.detail.items():
        yield line(f"{one.name}: {key}: {value}")
    if not one.diff or not one.changes:
        return
    yield Text()
    yield line(f"graph {graph.number}, {stage.graph}: {one.name}", "bold")
    lines = one.diff.splitlines()[2:]  # the first two name the sides
    for part in lines[:_MOST_DIFF_LINES]:
        yield Text(
            escaped(part), style=_COLOURS.get(part[:1], "dim"), no_wrap=True, overflow="ellipsis"
        )
    yield from _more(len(lines) - _MOST_DIFF_LINES, "line")


def _guards(graphs: Sequence[GraphRecord]) -> Iterator[RenderableType]:
    for graph in graphs:
        if graph.call != 0 or not graph.guards:
            continue
        parted = words.by_group(graph.guards)
        numbers = ", ".join(f"{group} {len(found)}" for group, found in parted.items())
        yield line(f"graph {graph.number}: {counted(len(graph.guards), 'guard')}: {numbers}")
        telling = [
            # Parameters and buffers change less than inputs do.
            x
            for group in _TELLING
            for x in parted.get(group, [])
            if "_parameters[" not in x.source and "_buffers[" not in x.source
        ]
        for one in telling[:_MOST_GUARDS]:
            said = one.says if one.source in one.says else f"{one.source}: {one.says}"
            yield indented(said, "dim", by=3)
        yield from _more(len(telling) - _MOST_GUARDS, "guard")


def _calls(calls: Sequence[CallRecord]) -> Iterator[RenderableType]:
    for number, call in enumerate(calls):
        said = f"{words.call(number, call)}: {counted(call.graphs, 'graph')} compiled"
        yield line(said if not call.problem else f"{said}, then {call.problem.error}")
        for one in call.recompiles[:_MOST_RECOMPILES]:
            yield indented(f"Recompiled: {short(one.function)}: {one.says}", "yellow", by=3)
            if one.dynamic:
                sizes = ", ".join(f"{plainly(v)} ({k})" for k, v in one.dynamic.items())
                yield indented(f"  now dynamic: {sizes}", by=3)
        yield from _more(len(call.recompiles) - _MOST_RECOMPILES, "recompile")


def _more(count: int, noun: str, plural: str | None = None) -> Iterator[RenderableType]:
    if count > 0:
        more = counted(count, f"more {noun}", plural and f"more {plural}")
        yield line(f"and {more}: {_REST}", "dim")
