"""A race as one HTML file."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from backbay.errors import plain
from backbay.race.record import Report, Settings
from backbay.race.sections import Row, Section, arms, sections, worded
from backbay.reporting import wording
from backbay.reporting.page import command, compiled_as, rendered

_FIGURE_SPACE = "\u2007"
_PUNCTUATION_SPACE = "\u2008"
_FEW = 3


def write_page(report: Report, path: str | Path) -> None:
    """Write a report's page to a file."""
    Path(path).write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return a report's page; the same report always gives the same text."""
    from backbay.race.plots import colours, plots  # noqa: PLC0415 (matplotlib: half a second)

    settings, names = report.settings, arms(report)
    found = sections(report)
    workloads = _listed([section.workload for section in found], "workload")
    title = f"{_listed(names, 'arm')} on {workloads}"
    drawn = [plots(section, names, f"plot-{number}") for number, section in enumerate(found)]
    return rendered(
        "backbay.race",
        report,
        noun="report",
        title=title if found else "Nothing was raced",
        sections=list(zip(found, map(_rows, found), drawn, strict=True)),
        arms=names,
        colours=colours(names),
        command=command(
            "race",
            [x.workload for x in found],
            _asked(settings),
            mode=settings.mode,
            dtype=settings.dtype,
            device=settings.device,
            seed=settings.seed,
        ),
        overview=[(x, [_cell(x, name) for name in names]) for x in found] if len(found) > 1 else [],
        changes=[(x, wording.ratio(x.speed, x.speed_ci)) for x in report.against.rows]
        if report.against is not None
        else [],
        memory=wording.size(report.machine.memory_bytes),
        cores=wording.counted(report.machine.cores, "core"),
        nothing=wording.NOTHING,
    )


def _asked(settings: Settings) -> Iterator[str]:
    """Yield the options that race the same arms."""
    if settings.arms:
        option = "--backends" if settings.arms == settings.backends else "--arms"
        yield from (option, ",".join(settings.arms))
    yield from compiled_as(settings.dynamic, fullgraph=settings.fullgraph)


def _rows(section: Section) -> list[Row]:
    rows = worded(section)
    columns = zip(
        rows,
        _aligned([x.median for x in rows]),
        _aligned([x.to_eager for x in rows]),
        _aligned([x.to_inductor for x in rows]),
        strict=True,
    )
    return [
        dataclasses.replace(row, median=median, to_eager=eager, to_inductor=inductor)
        for row, median, eager, inductor in columns
    ]


def _aligned(readings: Sequence[wording.Reading]) -> list[wording.Reading]:
    """Pad with spaces as wide as a digit and as a point: the font has digits of one width."""
    known = [reading.value for reading in readings if reading.value != wording.NOTHING]
    values = iter(wording.aligned(known, space=_FIGURE_SPACE, point=_PUNCTUATION_SPACE))
    return [
        reading
        if reading.value == wording.NOTHING
        else wording.Reading(Markup(next(values)), reading.interval)  # noqa: S704 (digits and spaces)
        for reading in readings
    ]


def _cell(section: Section, arm: str) -> str:
    result = next((r for r in section.results if r.arm == arm), None)
    if result is None:
        return wording.NOTHING
    if result.status != "ok":
        return result.status
    return wording.ratio(result.ratio_to_eager, None).value


def _listed(names: Sequence[str], noun: str) -> str:
    if not 0 < len(names) <= _FEW:
        return wording.counted(len(names), noun)
    return wording.listed([plain(name) for name in names])
