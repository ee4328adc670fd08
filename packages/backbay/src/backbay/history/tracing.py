"""Makes a history of reports."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from backbay.history.record import History, Metric, Point, Run, Series, Trace
from backbay.race.against import differences
from backbay.race.record import Report, Result
from backbay.reporting.machine import Machine
from backbay.workloads.setup import Mode

_INTERVALS: Mapping[Metric, str] = {
    "ratio_to_eager": "ratio_to_eager_ci",
    "ratio_to_inductor": "ratio_to_inductor_ci",
    "median_ms": "ci_ms",
}
_Key = tuple[str, Mode, str, str]


def traced(reports: Sequence[tuple[str, Report]], metric: Metric) -> History:
    """Return a metric over reports.

    Args:
        reports: each with the name of its file; the same one in several files counts once.
        metric: what is followed.
    """
    ordered = sorted(reports, key=lambda x: x[1].created)
    kept = [x for n, x in enumerate(ordered) if all(x[1] != y[1] for y in ordered[:n])]
    traces: dict[_Key, dict[str, list[Point]]] = {}
    for number, (_, report) in enumerate(kept):
        dtype, device = report.settings.dtype, _device_of(report.machine)
        for result in report.results:
            key = result.workload, result.mode, dtype, device
            series = traces.setdefault(key, {}).setdefault(result.arm, [])
            series.append(_point(result, number, metric))
    return History(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        metric=metric,
        runs=tuple(_runs(kept)),
        traces=tuple(_trace(key, series) for key, series in traces.items()),
    )


def _device_of(machine: Machine) -> str:
    """Return what times depend on: the GPU's own name, or the processor's."""
    return f"cpu, {machine.processor}" if machine.device == "cpu" else machine.device


def _runs(kept: Sequence[tuple[str, Report]]) -> Iterator[Run]:
    before: Report | None = None
    for file, report in kept:
        changed = () if before is None else tuple(differences(before, report))
        yield Run(
            file=file,
            created=report.created,
            machine=report.machine,
            versions=report.versions,
            changed=changed,
        )
        before = report


def _point(result: Result, run: int, metric: Metric) -> Point:
    interval = _INTERVALS.get(metric)
    return Point(
        run=run,
        status=result.status,
        value=getattr(result, metric),
        interval=getattr(result, interval) if interval else None,
    )


def _trace(key: _Key, series: Mapping[str, Sequence[Point]]) -> Trace:
    workload, mode, dtype, device = key
    return Trace(
        workload=workload,
        mode=mode,
        dtype=dtype,
        device=device,
        series=tuple(Series(arm=arm, points=tuple(points)) for arm, points in series.items()),
    )
