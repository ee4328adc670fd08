"""A race in the terminal: a table for each workload, then what to do.

Where the terminal is too narrow for every column, the columns that do not fit become a line of
words below their row: nothing is dropped, and no cell is wrapped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from backbay.race.record import Report, Result, Status
from backbay.race.sections import Section, graphs, judged, reason, sections
from backbay.reporting import wording
from backbay.reporting.terminal import Hanging

_GAP = 2
_INDENT = 6
_NAME_ROOM = 20
_IMPORTANCE = (
    "status",
    "median ms",
    "vs eager",
    "vs inductor",
    "compile",
    "peak",
    "graphs/breaks",
    "verdict",
)
_STYLES: dict[Status, str] = {
    "ok": "green",
    "wrong": "bold red",
    "failed": "red",
    "crashed": "red",
    "timeout": "yellow",
    "unavailable": "dim",
}


def table(report: Report) -> RenderableType:
    """Lay a report out for the terminal; it adapts to the width that it is printed at."""
    parts: list[RenderableType] = []
    found = sections(report)
    for section in found:
        parts += [*_section(section), Text()]
    parts += [_remark("note: ", note) for note in report.notes]
    for decision in (section.decision for section in found if section.decision is not None):
        lead = f"{wording.plain(decision.workload)} ({decision.mode}): "
        parts.append(Text(lead).append(wording.plain(decision.sentence), style="bold"))
    if not report.results:
        parts.append(Text("Nothing was raced."))
    parts.append(_surroundings(report))
    return Group(*parts)


def _section(section: Section) -> Iterator[RenderableType]:
    title = Text(wording.plain(section.workload), style="bold")
    yield title.append(f"  {section.mode}", style="not bold dim")
    yield _Rows(section)
    if any(map(reason, section.results)):
        yield Text()
    for result in section.results:
        name = wording.plain(result.backend)
        why = reason(result)
        if why:
            yield _remark(f"{name} {result.status}: ", why, style=_STYLES[result.status])
    for result in section.results:
        for note in result.notes:
            yield _remark(f"{wording.plain(result.backend)}: ", note)


def _remark(lead: str, remark: str, *, style: str = "dim") -> RenderableType:
    line = Text(lead, style=style).append(wording.plain(remark), style="not bold not dim default")
    return Hanging(line, first=2, rest=4)


def _surroundings(report: Report) -> Text:
    machine = report.machine
    where = [
        machine.device,
        *([machine.processor] if machine.processor != machine.device else []),
        wording.counted(machine.cores, "core"),
        wording.size(machine.memory_bytes),
        machine.system,
    ]
    versions = [f"{name} {version}" for name, version in report.versions.items()]
    return Text(wording.plain(" · ".join([*where, *versions])), style="dim")


@dataclass(frozen=True)
class _Column:
    """One column's cells, and the words that stand for them where the column does not fit."""

    title: str
    cells: Sequence[Text]
    words: Sequence[str]

    @property
    def width(self) -> int:
        return max(cell_len(self.title), *(cell.cell_len for cell in self.cells))

    @property
    def empty(self) -> bool:
        return all(cell.plain.strip() in {"", wording.NOTHING} for cell in self.cells)


@dataclass(frozen=True)
class _Rows:
    """One workload's rows, with as many columns as the width allows."""

    section: Section

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        results = self.section.results
        if not results:
            yield Text("  no results", style="dim")
            return
        columns = [column for column in _columns(results) if not column.empty]
        room = options.max_width - _GAP
        shown = _fitting(columns, room - _longest_name(results, _NAME_ROOM))
        names = _longest_name(results, max(_NAME_ROOM, room - _total(shown)))
        yield _line("backend", names, [(c.title, c.width) for c in shown], style="dim")
        for number, result in enumerate(results):
            yield from _row(
                self.section, result, names, [(c.cells[number], c.width) for c in shown]
            )
            words = [c.words[number] for c in columns if c not in shown and c.words[number]]
            if words:
                yield from _packed(words, options.max_width)


def _row(
    section: Section, result: Result, width: int, cells: Sequence[tuple[Text, int]]
) -> Iterator[Text]:
    name = Text(wording.plain(result.backend))
    if result.backend == section.winner:
        name.stylize("bold")
    if name.cell_len <= width:
        yield _line(name, width, cells)
        return
    yield Text("  ").append_text(name)
    yield _line("", width, cells)


def _line(
    name: Text | str, width: int, cells: Sequence[tuple[Text | str, int]], *, style: str = ""
) -> Text:
    line = Text(" " * _GAP, style=style, no_wrap=True, overflow="ignore")
    for text, columns in [(name, width), *cells]:
        cell = text.copy() if isinstance(text, Text) else Text(text)
        cell.pad_right(columns - cell.cell_len + _GAP)
        line.append_text(cell)
    line.rstrip()
    return line


def _packed(words: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Fill lines with phrases; only a phrase longer than a line is broken."""
    line = words[0]
    for phrase in words[1:]:
        if cell_len(f"{line}; {phrase}") + _INDENT < width:
            line = f"{line}; {phrase}"
            continue
        yield Hanging(Text(f"{line};", style="dim"), first=_INDENT, rest=_INDENT)
        line = phrase
    yield Hanging(Text(line, style="dim"), first=_INDENT, rest=_INDENT)


def _fitting(columns: Sequence[_Column], room: int) -> list[_Column]:
    """Choose columns by importance until one does not fit; give them in their order on the line."""
    by_importance = sorted(columns, key=lambda column: _IMPORTANCE.index(column.title))
    count = next((n for n in range(len(columns), 2, -1) if _total(by_importance[:n]) <= room), 2)
    return [column for column in columns if column in by_importance[:count]]


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns)


def _longest_name(results: Sequence[Result], room: int) -> int:
    """Return how wide the names are that fit; a longer one gets a line of its own."""
    widths = [cell_len(wording.plain(result.backend)) for result in results]
    return max(len("backend"), *(width for width in widths if width <= room), 0)


def _columns(results: Sequence[Result]) -> list[_Column]:
    return [
        _Column(
            "status",
            [Text(r.status, style=_STYLES[r.status]) for r in results],
            [""] * len(results),
        ),
        _worded("verdict", [judged(r) for r in results], "{}"),
        _measured("median ms", [wording.milliseconds(r.median_ms, r.ci_ms) for r in results]),
        _measured(
            "vs eager", [wording.ratio(r.ratio_to_eager, r.ratio_to_eager_ci) for r in results]
        ),
        _measured(
            "vs inductor",
            [wording.ratio(r.ratio_to_inductor, r.ratio_to_inductor_ci) for r in results],
        ),
        _worded("compile", [_compile(r) for r in results], "compiled in {}"),
        _worded("peak", [wording.size(r.peak_bytes) for r in results], "peak {}"),
        _Column(
            "graphs/breaks",
            [Text(_graphs(r)) for r in results],
            [graphs(r).replace(wording.NOTHING, "") for r in results],
        ),
    ]


def _worded(title: str, cells: Sequence[str], words: str) -> _Column:
    return _Column(
        title,
        [Text(cell) for cell in cells],
        [words.format(cell) if cell not in {"", wording.NOTHING} else "" for cell in cells],
    )


def _measured(title: str, readings: Sequence[wording.Reading]) -> _Column:
    values = wording.aligned([reading.value for reading in readings])
    cells = [
        Text(value).append(f" {reading.interval}" if reading.interval else "", style="dim")
        for value, reading in zip(values, readings, strict=True)
    ]
    words = ["" if r.value == wording.NOTHING else f"{title} {r}" for r in readings]
    return _Column(title, cells, words)


def _compile(result: Result) -> str:
    if result.compile_s is None or not result.warmup_s:
        return wording.seconds(result.compile_s)
    return f"{wording.seconds(result.compile_s)} + {wording.seconds(result.warmup_s)} warm-up"


def _graphs(result: Result) -> str:
    counts = (result.graphs, result.breaks)
    if counts == (None, None):
        return wording.NOTHING
    return "/".join(wording.NOTHING if count is None else str(count) for count in counts)
