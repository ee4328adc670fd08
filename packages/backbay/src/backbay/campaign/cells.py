"""What a campaign's table and page show of each row and arm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from backbay.campaign.record import Campaign, Row
from backbay.race import Result
from backbay.race.sections import is_timed
from backbay.reporting import wording

_FULL = math.log2(4.0)
"""The ratio at which a colour is as strong as it becomes."""
_SHADES = 5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm on one row."""

    arm: str
    text: str
    """The ratio to eager, or the status of what has none."""
    interval: str = ""
    status: str = ""
    """Empty where the arm was not in the race."""
    chosen: bool = False
    """Whether the race says to use it."""
    shade: int = 0
    """From -5, a quarter of eager's speed and less, to 5, four times and more."""


def cells(campaign: Campaign, row: Row) -> list[Cell]:
    """Return a row's cells, one for each arm of the campaign."""
    return [_cell(row, arm) for arm in campaign.arms]


def _cell(row: Row, arm: str) -> Cell:
    result = row.result(arm)
    if result is None:
        return Cell(arm=arm, text=wording.NOTHING)
    chosen = row.decision is not None and row.decision.winner == arm
    if not is_timed(result) or result.ratio_to_eager is None:
        return Cell(arm=arm, text=result.status, status=result.status, chosen=chosen)
    reading = wording.ratio(result.ratio_to_eager, result.ratio_to_eager_ci)
    return Cell(
        arm=arm,
        text=reading.value,
        interval=reading.interval,
        status=result.status,
        chosen=chosen,
        shade=_shade(result),
    )


def _shade(result: Result) -> int:
    """Return how strong a colour is; an interval that holds 1 has none."""
    low, high = result.ratio_to_eager_ci or (result.ratio_to_eager or 1.0,) * 2
    if low <= 1.0 <= high or not result.ratio_to_eager:
        return 0
    part = math.log2(result.ratio_to_eager) / _FULL
    strength = min(_SHADES, math.ceil(abs(part) * _SHADES))
    return strength if part > 0 else -strength


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One arm over all rows."""

    arm: str
    chosen: int
    """How many rows say to use it."""
    right: int
    wrong: int
    failed: int
    mean: float | None
    """Geometric mean of its ratios to eager, where it has one."""


def summaries(campaign: Campaign) -> list[Summary]:
    """Return each arm over all rows."""
    return [_summary(campaign.rows, arm) for arm in campaign.arms]


def _summary(rows: Sequence[Row], arm: str) -> Summary:
    results = [x for row in rows if (x := row.result(arm)) is not None]
    ratios = [x.ratio_to_eager for x in results if is_timed(x) and x.ratio_to_eager]
    return Summary(
        arm=arm,
        chosen=sum(row.decision is not None and row.decision.winner == arm for row in rows),
        right=sum(x.status == "ok" for x in results),
        wrong=sum(x.status == "wrong" for x in results),
        failed=sum(x.status not in {"ok", "wrong"} for x in results),
        mean=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None,
    )
