"""A history in the terminal: a table for each workload and device, a row for each run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.errors import plain
from backbay.history.record import History, Series, Trace
from backbay.history.wording import TITLES, reading, when
from backbay.reporting import terminal
from backbay.reporting.wording import elided

_GAP = 2
_LONGEST_NAME = 32


def table(history: History) -> RenderableType:
    """Lay a history out for the terminal."""
    parts: list[RenderableType] = []
    for trace in history.traces:
        parts += [*_trace(history, trace), Text()]
    for run in (x for x in history.runs if x.changed):
        said = f"{when(run.created)}: {'; '.join(run.changed)}"
        parts.append(terminal.line(said, "dim"))
    if not history.traces:
        parts.append(Text("No race has a result."))
    return Group(*parts)


def _trace(history: History, trace: Trace) -> Iterator[RenderableType]:
    title = Text(plain(trace.workload), style="bold")
    what = f"  {trace.mode}  {trace.dtype}  {trace.device}  {TITLES[history.metric]}"
    yield title.append(plain(what), style="not bold dim")
    yield _Columns(history, trace)


@dataclass(frozen=True)
class _Columns:
    """A row for each run; where the terminal is too narrow for all arms, in several tables."""

    history: History
    trace: Trace

    def __rich_console__(
        self, _console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        runs = [when(self.history.runs[number].created) for number in self.trace.runs]
        room = options.max_width - _GAP - max(map(len, runs), default=0)
        columns: list[tuple[str, list[str]]] = []
        for series in self.trace.series:
            column = self._column(series)
            if columns and sum(map(_width, [*columns, column])) > room:
                yield self._table(runs, columns)
                yield Text()
                columns = []
            columns.append(column)
        yield self._table(runs, columns)

    def _column(self, series: Series) -> tuple[str, list[str]]:
        found = {point.run: point for point in series.points}
        cells = [str(reading(found.get(x), self.history.metric)) for x in self.trace.runs]
        return elided(plain(series.arm), _LONGEST_NAME), cells

    def _table(
        self, runs: Sequence[str], columns: Sequence[tuple[str, list[str]]]
    ) -> RenderableType:
        made = terminal.table("run", *(title for title, _ in columns))
        for row in zip(runs, *(cells for _, cells in columns), strict=True):
            terminal.add_row(made, row)
        return Padding(made, (0, 0, 0, _GAP))


def _width(column: tuple[str, list[str]]) -> int:
    title, cells = column
    return max(map(len, (title, *cells))) + _GAP
