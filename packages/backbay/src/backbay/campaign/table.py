"""A campaign in the terminal: one table, a row for each race."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.campaign.cells import Cell, cells, summaries
from backbay.campaign.record import Campaign, Row
from backbay.errors import plain
from backbay.reporting import terminal, wording
from backbay.reporting.terminal import Hanging

_GAP = 2
_CELL = len("crashed*")
_LONGEST_NAME = 32
_STYLES = {"wrong": "bold red", "failed": "red", "crashed": "red", "timeout": "yellow"}


def table(campaign: Campaign) -> RenderableType:
    """Lay a campaign out for the terminal: an arm has a number, and its name stands below."""
    head = Text(plain(campaign.name), style="bold")
    head.append("  times as fast as eager; the arm to use is marked *", style="not bold dim")
    parts: list[RenderableType] = [head, _Map(campaign)]
    parts += [*_arms(campaign), Text(), *_reasons(campaign.rows)]
    parts += [Hanging(Text(plain(f"note: {x}"), style="dim"), 2, 4) for x in campaign.notes]
    return Group(*parts)


@dataclass(frozen=True)
class _Map:
    """Rows and arms; where the terminal is too narrow for all arms, in several tables."""

    campaign: Campaign

    def __rich_console__(
        self, _console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        campaign = self.campaign
        names = [wording.elided(plain(x.title), _LONGEST_NAME) for x in campaign.rows]
        ways = [plain(x.way) for x in campaign.rows]
        taken = sum(max([len(x) for x in column], default=0) for column in (names, ways))
        fitting = max(1, (options.max_width - taken - 3 * _GAP) // (_CELL + _GAP))
        for first in range(0, len(campaign.arms), fitting):
            numbers = range(first, min(first + fitting, len(campaign.arms)))
            made = terminal.table("workload", "", *(f"[{n}]" for n in numbers))
            for row, name, way in zip(campaign.rows, names, ways, strict=True):
                shown = cells(campaign, row) if row.report is not None else []
                texts = [_shown(shown[n]) for n in numbers] if shown else [_unraced(row)]
                made.add_row(Text(name), Text(way, style="dim"), *texts)
            yield Padding(made, (0, 0, 0, _GAP))
            yield Text()


def _shown(cell: Cell) -> Text:
    text = "n/a" if cell.status == "unavailable" else cell.text
    style = "bold" if cell.chosen else _STYLES.get(cell.status, "")
    return Text(f"{text}*" if cell.chosen else text, style=style)


def _unraced(row: Row) -> Text:
    return Text(row.status, style=_STYLES["failed"] if row.status == "lost" else "dim")


def _arms(campaign: Campaign) -> Iterator[RenderableType]:
    made = terminal.table("", "arm", "mean", "to use", "wrong", "failed", folded="arm")
    for number, one in enumerate(summaries(campaign)):
        mean = wording.ratio(one.mean, None).value
        cells = (f"[{number}]", one.arm, mean, one.chosen, one.wrong, one.failed)
        terminal.add_row(made, cells)
    yield Padding(made, (0, 0, 0, 2))


def _reasons(rows: tuple[Row, ...]) -> Iterator[RenderableType]:
    for row in rows:
        name = f"{row.title}, {row.way}"
        if row.reason:
            yield Hanging(Text(plain(f"{name}: {row.reason}"), style="red"), 2, 4)
        for result in row.report.results if row.report is not None else ():
            if result.status not in {"ok", "unavailable"}:
                why = result.reason or (result.verdict.reason if result.verdict else "")
                said = f"{name}, {result.arm} {result.status}: {why}"
                yield Hanging(Text(plain(said)), 2, 4)
