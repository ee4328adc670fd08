"""A race in the terminal: a table for each workload, then what to do.

Where the terminal is too narrow for every column, the columns that do not fit become a line of
words below their row: nothing is dropped, and no cell is wrapped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from backbay.errors import plain
from backbay.race.comparison import ComparedRow, Comparison
from backbay.race.crossings import sentence
from backbay.race.record import Decision, Report, Status
from backbay.race.sections import Row, Section, sections, worded
from backbay.reporting import wording
from backbay.reporting.terminal import Hanging

_GAP = 2
_INDENT = 6
_NAME_ROOM = 20
_FEWEST = 2
"""Columns that are shown however narrow the terminal is."""
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
    unclear = [x for x in report.decision if x.unclear]
    parts += [_decided(x) for x in unclear]
    for section in found:
        parts += [*_section(section), Text()]
    parts += [_remark("note: ", note) for note in report.notes]
    parts += [_decided(x) for x in report.decision if x not in unclear]
    if not report.results:
        parts.append(Text("Nothing was raced."))
    if report.against is not None:
        parts += [*_against(report.against), Text()]
    parts.append(_surroundings(report))
    return Group(*parts)


def _decided(decision: Decision) -> Text:
    lead = f"{plain(decision.workload)} ({decision.mode}): "
    return Text(lead).append(plain(decision.sentence), style="bold")


def _section(section: Section) -> Iterator[RenderableType]:
    title = Text(plain(section.workload), style="bold")
    yield title.append(f"  {section.mode}", style="not bold dim")
    rows = worded(section)
    yield _Rows(rows)
    if any(row.reason for row in rows):
        yield Text()
    for row in rows:
        if row.reason:
            status = row.result.status
            yield _remark(f"{row.name} {status}: ", row.reason, style=_STYLES[status])
    for row in rows:
        for note in row.notes:
            yield _remark(f"{row.name}: ", note)
    if section.crossings:
        yield _remark("compiling: ", sentence(section.crossings))


def _against(comparison: Comparison) -> Iterator[RenderableType]:
    yield Text(f"against the race of {comparison.created[:16].replace('T', ' ')} UTC", style="bold")
    for difference in comparison.differences:
        yield _remark("", difference)
    several = len({row.workload for row in comparison.rows}) > 1
    for row in comparison.rows:
        name = f"{row.workload}, {row.arm}" if several else row.arm
        style = "red" if row.failed else "dim"
        yield _remark(f"{plain(name)}: ", _compared(row), style=style)
    yield Text(plain(comparison.sentence), style="bold red" if comparison.failed else "bold")


def _compared(row: ComparedRow) -> str:
    if row.speed is not None and not row.failed:
        return f"{wording.ratio(row.speed, row.speed_ci)} as fast as then"
    return row.reason or f"{row.was} then, {row.now} now"


def _remark(lead: str, remark: str, *, style: str = "dim") -> RenderableType:
    line = Text(lead, style=style).append(plain(remark), style="not bold not dim default")
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
    return Text(plain(" · ".join([*where, *versions])), style="dim")


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

    rows: Sequence[Row]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if not self.rows:
            yield Text("  no results", style="dim")
            return
        columns = [column for column in _columns(self.rows) if not column.empty]
        room = options.max_width - _GAP
        by_importance = sorted(columns, key=lambda column: _IMPORTANCE.index(column.title))
        count = len(columns)
        narrow = room - self._longest_name(_NAME_ROOM)
        while count > _FEWEST and _total(by_importance[:count]) > narrow:
            count -= 1
        shown = [column for column in columns if column in by_importance[:count]]
        width = self._longest_name(max(_NAME_ROOM, room - _total(shown)))
        yield _line("arm", width, [(c.title, c.width) for c in shown], style="dim")
        for number, row in enumerate(self.rows):
            name = Text(row.name)
            if row.chosen:
                name.stylize("bold")
            if name.cell_len > width:
                yield Text("  ").append_text(name)
                name = Text("")
            yield _line(name, width, [(c.cells[number], c.width) for c in shown])
            words = [c.words[number] for c in columns if c not in shown and c.words[number]]
            if words:
                yield from _packed(words, options.max_width)

    def _longest_name(self, room: int) -> int:
        """Return how wide the names are that fit; a longer one gets a line of its own."""
        widths = [cell_len(row.name) for row in self.rows]
        return max(len("arm"), *(width for width in widths if width <= room), 0)


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


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns)


def _columns(rows: Sequence[Row]) -> list[_Column]:
    nothing = wording.NOTHING
    counts = [
        [nothing if x is None else str(x) for x in (row.result.graphs, row.result.breaks)]
        for row in rows
    ]
    return [
        _Column(
            "status",
            [Text(x.result.status, style=_STYLES[x.result.status]) for x in rows],
            [""] * len(rows),
        ),
        _worded("verdict", [x.verdict for x in rows], "{}"),
        _measured("median ms", [x.median for x in rows]),
        _measured("vs eager", [x.to_eager for x in rows]),
        _measured("vs inductor", [x.to_inductor for x in rows]),
        _worded(
            "compile",
            [
                f"{x.compile} + {x.warmup} warm-up"
                if x.warmup and x.compile != nothing
                else x.compile
                for x in rows
            ],
            "compiled in {}",
        ),
        _worded("peak", [x.peak for x in rows], "peak {}"),
        _Column(
            "graphs/breaks",
            [Text(nothing if x == [nothing, nothing] else "/".join(x)) for x in counts],
            [x.graphs.replace(nothing, "") for x in rows],
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
