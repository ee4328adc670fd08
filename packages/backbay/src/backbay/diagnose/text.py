"""A diagnosis in the terminal: what to fix first, then the rest, then where the time goes.

What would run over pages is cut with a word; JSON has it whole.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.diagnose import words
from backbay.diagnose.record import (
    CompiledGraph,
    Diagnosis,
    KernelRecord,
    RankedFinding,
    TrialRecord,
    WhiteBox,
)
from backbay.errors import plain
from backbay.explain.words import how_often
from backbay.reporting.terminal import add_row, indented, line, table
from backbay.reporting.wording import NOTHING, counted, milliseconds, seconds, short, size

_MOST_FINDINGS = 24
_MOST_KERNELS = 12
_MOST_NEIGHBOURS = 8
_MOST_OUTSIDE = 6
_NAME = 40
_REST = "--json has them all"
_SEVERITIES = {"error": "red", "warning": "yellow", "note": ""}
_STATUSES = {
    "confirmed": "green",
    "no_gain": "dim",
    "worse": "red",
    "wrong": "red",
    "failed": "red",
    "not_tried": "dim",
}


def text(diagnosis: Diagnosis) -> RenderableType:
    """Lay a diagnosis out for the terminal."""
    settings = diagnosis.settings
    head = Text(plain(settings.workload), style="bold")
    head.append(f"  {settings.mode}  {plain(settings.arm)}", style="not bold dim")
    parts: list[RenderableType] = [head]
    urgent = sum(x.urgent for x in diagnosis.findings[:1])
    first, rest = diagnosis.findings[:urgent], diagnosis.findings[urgent:]
    parts += _section("Fix this first", _findings(first) if first else [line(diagnosis.sentence)])
    parts += _section("Then" if first else "Worth a look", _findings(rest))
    inside = diagnosis.inside
    if inside is not None:
        parts += _section("Where a step goes", _step(inside))
        parts += _section("Kernels", _kernels(inside))
        parts += _section("Not fused", _neighbours(inside.graphs))
        parts += _section("Compiling", _phases(inside))
    return Group(*parts, *(line(f"note: {note}", "dim") for note in diagnosis.notes))


def _section(title: str, found: Iterable[RenderableType]) -> list[RenderableType]:
    inner = list(found)
    if not inner:
        return []
    return [Text(), Text(title, style="bold"), Padding(Group(*inner), (0, 0, 0, 2))]


def _findings(findings: Sequence[RankedFinding]) -> Iterator[RenderableType]:
    for one in findings[:_MOST_FINDINGS]:
        head = f"{one.code} {one.severity}: {one.message}{how_often(one)}"
        yield line(head, _SEVERITIES[one.severity])
        if one.supposed:
            yield indented("only where the batch varies", "dim", by=3)
        if one.line:
            yield indented(f"at {short(one.line)}", "bold", by=3)
        for fix in one.fixes:
            yield indented(f"change: {fix}", by=3)
        for trial in one.trials:
            yield from _trial(trial)
        if one.saved_s:
            yield indented(f"saves {seconds(one.saved_s)} in the first 1,000 steps", "green", by=3)
    yield from _more(len(findings) - _MOST_FINDINGS, "finding")


def _trial(trial: TrialRecord) -> Iterator[RenderableType]:
    status = trial.status.replace("_", " ")
    yield indented(f"{status}: {trial.remedy}", _STATUSES[trial.status], by=3)
    yield indented(trial.sentence, "dim" if trial.status == "not_tried" else "", by=5)


def _step(inside: WhiteBox) -> Iterator[RenderableType]:
    step = inside.step
    yield line(f"{milliseconds(step.wall_ms, step.wall_ci_ms)} ms a step")
    made = table("", "ms", "share", justify="right")
    for name, ms in words.shares(step):
        add_row(made, (name, milliseconds(ms, None), words.share(ms, step)))
    yield made
    if step.peak_bytes is not None:
        yield line(f"peak memory {size(step.peak_bytes)}")
    for one in inside.outside[:_MOST_OUTSIDE]:
        place = f", {one.lines[0]}" if one.lines else ""
        yield indented(f"uncompiled: {one.name}, {milliseconds(one.ms, None)} ms{place}", "dim")
    yield from _more(len(inside.outside) - _MOST_OUTSIDE, "operator outside of graphs",
                     "operators outside of graphs")  # fmt: skip


def _kernels(inside: WhiteBox) -> Iterator[RenderableType]:
    every = [(g, k) for g in inside.graphs for k in g.kernels]
    if not every:
        return
    every.sort(key=lambda x: -(x[1].ms or 0.0))
    titles = ("graph", "work", "ms", "share", "limit", "kernel, and its last line")
    made = table(*titles, folded=titles[-1])
    for graph, kernel in every[:_MOST_KERNELS]:
        add_row(made, (graph.number, *_cells(kernel)))
    yield made
    yield from _more(len(every) - _MOST_KERNELS, "kernel")
    yield line(f"limit: {words.limit(inside.limit)}", "dim")


def _cells(kernel: KernelRecord) -> tuple[str, ...]:
    name = kernel.name if len(kernel.name) <= _NAME else f"{kernel.name[: _NAME - 1]}…"
    place = short(kernel.lines[-1]) if kernel.lines else NOTHING
    more = f" and {counted(len(kernel.lines) - 1, 'more line')}" if len(kernel.lines) > 1 else ""
    return (
        kernel.work,
        milliseconds(kernel.ms, None).value,
        words.percent(kernel.share),
        words.percent(kernel.of_limit),
        f"{name} {place}{more}",
    )


def _neighbours(graphs: Sequence[CompiledGraph]) -> Iterator[RenderableType]:
    found = [
        f"graph {graph.number}: {one} and {other}: {reason}"
        for graph, one, other, reason in words.unfused(graphs)
    ]
    yield from (line(x) for x in found[:_MOST_NEIGHBOURS])
    yield from _more(len(found) - _MOST_NEIGHBOURS, "pair")


def _phases(inside: WhiteBox) -> Iterator[RenderableType]:
    phases = ", ".join(f"{name} {seconds(x)}" for name, x in inside.phases_s.items())
    yield line(f"{seconds(inside.compile_s)}: {phases}" if phases else seconds(inside.compile_s))


def _more(count: int, noun: str, plural: str | None = None) -> Iterator[RenderableType]:
    if count > 0:
        more = counted(count, f"more {noun}", plural and f"more {plural}")
        yield line(f"and {more}: {_REST}", "dim")
