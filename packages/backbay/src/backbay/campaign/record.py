"""What a campaign reports, as data: the schema of ``backbay race CAMPAIGN.toml --json``."""

from typing import Literal

import msgspec

from backbay.campaign.plan import Unit
from backbay.race import Decision, Report, Result
from backbay.workloads.setup import batch_words

SCHEMA = "backbay.campaign/1"

Status = Literal["raced", "lost", "waiting"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One workload in one way, and the race of it."""

    unit: Unit
    """What was asked for."""
    device_name: str
    """Where it ran: the GPU's own name, or the processor's."""
    status: Status
    """``lost``: there is no report. ``waiting``: it was not its turn yet."""
    reason: str = ""
    """Why it was lost; one line."""
    kept: bool = False
    """Whether an earlier run of the campaign raced it."""
    file: str = ""
    """Where the race is kept: a name in the folder of results."""
    report: Report | None = None
    """As `backbay race --json` writes it."""

    @property
    def decision(self) -> Decision | None:
        """What the race decided, if it was raced to its end."""
        return self.report.decision[0] if self.report is not None and self.report.decision else None

    @property
    def title(self) -> str:
        """What the row is called."""
        results = self.report.results if self.report is not None else ()
        if results:
            return results[0].workload
        named = f"{self.unit.workload}@{self.unit.size}" if self.unit.size else self.unit.workload
        return f"{named}, {batch_words(self.unit.batch)}" if self.unit.batch else named

    @property
    def way(self) -> str:
        """How the workload was raced, in short."""
        return f"{self.unit.mode}, {self.unit.dtype}"

    def result(self, arm: str) -> Result | None:
        """Return what the race found of an arm."""
        results = self.report.results if self.report is not None else ()
        return next((x for x in results if x.arm == arm), None)


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A whole campaign, as far as it has come."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    name: str
    versions: dict[str, str]
    """Distribution name to version, of all races."""
    arms: tuple[str, ...]
    """In the order asked for; eager first."""
    rows: tuple[Row, ...]
    partial: bool = False
    """Whether it was interrupted: rows are waiting."""
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that have no decision, or whose eager could not be timed."""
        return tuple(
            x
            for x in self.rows
            if x.status == "lost" or (x.report is not None and x.report.unraced)
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Where its rows ran."""
        return tuple(dict.fromkeys(x.device_name for x in self.rows))
