"""Runs a campaign: what is kept is not raced again, and each race is kept when it ends."""

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from backbay.campaign.here import Here
from backbay.campaign.place import Placement, Raced
from backbay.campaign.plan import Plan, Unit, read
from backbay.campaign.record import Campaign, Row
from backbay.campaign.results import Results, digest
from backbay.dependencies import check_installed
from backbay.errors import Interrupted
from backbay.race import Report
from backbay.race.record import EAGER
from backbay.registry import Registry, default_registry

Show = Callable[[Campaign, Row], None]
"""Called with what there is when a race has ended, and with its row."""


def run(
    path: str | Path,
    *,
    results: str | Path | None = None,
    anew: bool = False,
    placement: Placement | None = None,
    show: Show = lambda *_: None,
    registry: Registry = default_registry,
) -> Campaign:
    """Race all workloads of a campaign, one after the other, but for what is done.

    Args:
        path: the TOML file; docs/campaigns.md says what may be in it.
        results: the folder that races are kept in; default: the file's name with ``.results`` in
            place of ``.toml``, beside it.
        anew: race again what is done.
        placement: where races run; default: here.
        show: told of each race when it has ended.
        registry: where names are looked up, and whose versions count.

    Raises:
        InputError: the file can't be read, or names what does not exist here; nothing was raced.
        Interrupted: by Ctrl-C; it has what had been raced.
    """
    check_installed("a campaign")
    path = Path(path)
    plan = read(path, registry)
    placement = placement or Here(registry=registry)
    kept = Results(Path(results or path.with_suffix(".results")), registry.environment)
    kept.prepare()
    names = placement.device_names([unit.device for unit in plan.units])
    # Of the sources as they are now: one that changes while it is raced is raced again.
    digests = {unit: digest(unit, names[unit.device]) for unit in plan.units}
    rows = {
        unit: _row(unit, names[unit.device], None if anew else kept.find(digests[unit]))
        for unit in plan.units
    }
    waiting = [x for x in plan.units if rows[x].report is None]
    try:
        with contextlib.closing(placement.race(waiting)) as races:
            for raced in races:
                unit = raced.unit
                rows[unit] = _ended(raced, rows[unit], digests[unit], kept)
                show(_campaign(plan, rows), rows[unit])
    except KeyboardInterrupt as stopped:
        raise Interrupted(_campaign(plan, rows, partial=True)) from stopped
    return _campaign(plan, rows)


def _row(unit: Unit, device_name: str, found: tuple[str, Report] | None) -> Row:
    if found is None:
        return Row(unit=unit, device_name=device_name, status="waiting")
    file, report = found
    return Row(
        unit=unit, device_name=device_name, status="raced", kept=True, file=file, report=report
    )


def _ended(raced: Raced, row: Row, digest: str, results: Results) -> Row:
    if raced.report is None:
        return replace(row, status="lost", reason=raced.reason)
    file = results.keep(row.unit, digest, raced.report)
    return replace(row, status="raced", file=file, report=raced.report)


def _notes(reports: Sequence[Report], rows: Mapping[Unit, Row]) -> Iterator[str]:
    if len({x.device_name for x in rows.values()}) > 1:
        yield "rows ran on several devices: compare what is in one row, not rows"
    differing = {name: set[str]() for report in reports for name in report.versions}
    for report in reports:
        for name, version in report.versions.items():
            differing[name].add(version)
    for name, versions in sorted(differing.items()):
        if len(versions) > 1:
            yield f"rows ran with several versions of {name}: {', '.join(sorted(versions))}"


def _campaign(plan: Plan, rows: Mapping[Unit, Row], *, partial: bool = False) -> Campaign:
    reports = [x.report for x in rows.values() if x.report is not None]
    versions: dict[str, str] = {}
    for report in reports:
        versions |= report.versions
    raced = (x.arm for report in reports for x in report.results)
    return Campaign(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        name=plan.name,
        versions=versions,
        arms=tuple(dict.fromkeys([EAGER, *plan.arms, *raced])),
        rows=tuple(rows.values()),
        partial=partial,
        notes=tuple(_notes(reports, rows)),
    )
