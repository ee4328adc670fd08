"""A history as data: the schema of ``backbay history --json``."""

from typing import Literal, get_args

import msgspec

from backbay.reporting.machine import Machine
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

SCHEMA = "backbay.history/1"

Metric = Literal["ratio_to_eager", "ratio_to_inductor", "median_ms", "compile_s", "peak_bytes"]
METRICS: tuple[Metric, ...] = get_args(Metric)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One race that was kept."""

    file: str
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    versions: dict[str, str]
    changed: tuple[str, ...] = ()
    """How machine and versions differ from those of the run before; one line each."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one run found of one arm on one workload."""

    run: int
    """A position in ``runs``."""
    status: str
    value: float | None
    """``null`` where it was not measured."""
    interval: Interval | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one workload, over the runs that have it; the earliest first."""

    arm: str
    points: tuple[Point, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All arms of one workload on one device: what may be compared."""

    workload: str
    mode: Mode
    dtype: str
    device: str
    """``cpu`` with the processor's name, or the GPU's own name."""
    series: tuple[Series, ...]

    @property
    def runs(self) -> tuple[int, ...]:
        """The runs that have it, the earliest first."""
        return tuple(sorted({point.run for series in self.series for point in series.points}))


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over runs."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    metric: Metric
    runs: tuple[Run, ...]
    """The earliest first."""
    traces: tuple[Trace, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Those of the last run."""
        return self.runs[-1].versions if self.runs else {}
