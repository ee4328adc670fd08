"""A race while it runs: a table that fills, and what goes on below it; a log gets lines."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from backbay.cli.console import Screen
from backbay.errors import plain
from backbay.race.estimate import clock
from backbay.race.record import Result
from backbay.reporting import wording
from backbay.reporting.terminal import add_row, table

Row = Callable[[Result], None]


@dataclass(frozen=True)
class Watching:
    """What a race tells while it runs."""

    tell: Callable[[str, str, str, str], None]
    row: Row


@contextlib.contextmanager
def watching() -> Iterator[Watching]:
    """Return what shows a race, until the block ends."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield _log(console)
        return
    board = _Board()
    with Live(board, console=console, refresh_per_second=4, transient=True):
        yield Watching(board.tell, board.row)


class _Board:
    """The rows of the workload that is raced, and one line of what goes on."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._rows: dict[tuple[str, str], Result] = {}
        self._workload = ""
        self._line = Text("starting")
        self._spinner = Spinner("dots")

    def tell(self, workload: str, arm: str, text: str, how_far: str) -> None:
        """Show what goes on."""
        said = f"{text}, {how_far}" if how_far else text
        self._workload = workload
        self._line = Text.assemble((plain(workload), "bold"), plain(f" · {arm} · {said}"))

    def row(self, result: Result) -> None:
        """Show a row, in place of what it was."""
        self._rows[result.workload, result.arm] = result

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        rows = [x for (workload, _), x in self._rows.items() if workload == self._workload]
        if rows:
            drawn = table("arm", "status", "compile", "median ms", "vs eager")
            for x in rows:
                median = wording.milliseconds(x.median_ms, None)
                ratio = wording.ratio(x.ratio_to_eager, None)
                add_row(drawn, (x.arm, x.status, wording.seconds(x.compile_s), median, ratio))
            yield drawn
        elapsed = clock(time.monotonic() - self._start)
        self._spinner.update(text=Text.assemble(self._line, (f"  {elapsed}", "dim")))
        yield self._spinner


def _log(console: Screen) -> Watching:
    """Return what prints each stage and each row once; a log does not want every round."""
    start, last = time.monotonic(), ""
    shown: set[tuple[str, str, bool]] = set()

    def printed(text: str) -> None:
        console.print(
            Text(f"{clock(time.monotonic() - start):>5}  {plain(text)}"),
            style="dim",
            soft_wrap=True,
        )

    def tell(workload: str, arm: str, text: str, _how_far: str) -> None:
        nonlocal last
        line = f"{workload} · {arm} · {text}"
        if line != last:
            printed(line)
        last = line

    def row(result: Result) -> None:
        key = (result.workload, result.arm, result.median_ms is not None)
        if key in shown:
            return
        shown.add(key)
        said: list[str] = [result.status]
        if result.compile_s is not None:
            said.append(f"compiled in {wording.seconds(result.compile_s)}")
        if result.median_ms is not None:
            ratio = wording.ratio(result.ratio_to_eager, None)
            said.append(f"{wording.milliseconds(result.median_ms, None)} ms, {ratio} eager")
        printed(f"{result.workload} · {result.arm} · {', '.join(said)}")

    return Watching(tell, row)
