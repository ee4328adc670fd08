"""What a race has to say of an earlier one, as data: ``against`` of ``backbay race --json``."""

from typing import Literal

import msgspec

from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

Basis = Literal["median_ms", "ratio_to_eager", "status"]
"""What two races are compared by."""


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of either race beside the same of the other."""

    workload: str
    mode: Mode
    arm: str
    was: str | None
    """Its status in the earlier race; ``null`` where it has no such row."""
    now: str | None
    """Likewise in this one."""
    speed: float | None = None
    """How many times as fast as in the earlier race; ``null`` where that can't be told."""
    speed_ci: Interval | None = None
    failed: bool = False
    """Whether it was right and is not any more, or the whole interval lies below the bar."""
    reason: str = ""
    """Why it failed, or why there is no speed; one line."""

    @property
    def compared(self) -> bool:
        """Whether both races have it."""
        return self.was is not None and self.now is not None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """This race against an earlier one."""

    created: str
    """Of the earlier race: UTC, ISO 8601."""
    basis: Basis
    """``median_ms`` where machine and versions are the same, ``ratio_to_eager`` where only the
    device is, ``status`` where it is another device."""
    differences: tuple[str, ...]
    """Of machines and versions; one line each."""
    fail_below: float | None
    """The bar; ``null``: no row fails."""
    sentence: str
    rows: tuple[ComparedRow, ...]

    @property
    def failed(self) -> tuple[ComparedRow, ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if row.failed)
