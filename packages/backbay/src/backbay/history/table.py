"""A history in the terminal: a table for each workload and device, a row for each run."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.errors import plain
from backbay.history.record import History, Trace
from backbay.history.wording import TITLES, reading, when
from backbay.reporting import terminal


def table(history: History) -> RenderableType:
    """Lay a history out for the terminal."""
    parts: list[RenderableType] = []
    for trace in history.traces:
        parts += [*_trace(history, trace), Text()]
    changed = [x for x in history.runs if x.changed]
    for run in changed:
        said = f"{when(run.created)}: {'; '.join(run.changed)}"
        parts.append(terminal.line(said, "dim"))
    if not history.traces:
        parts.append(Text("No race has a result."))
    return Group(*parts)


def _trace(history: History, trace: Trace) -> Iterator[RenderableType]:
    title = Text(plain(trace.workload), style="bold")
    what = f"  {trace.mode}  {trace.dtype}  {trace.device}  {TITLES[history.metric]}"
    yield title.append(plain(what), style="not bold dim")
    made = terminal.table("run", *(x.arm for x in trace.series))
    for number in trace.runs:
        found = ({x.run: x for x in series.points}.get(number) for series in trace.series)
        cells = (when(history.runs[number].created), *(reading(x, history.metric) for x in found))
        terminal.add_row(made, cells)
    yield Padding(made, (0, 0, 0, 2))
