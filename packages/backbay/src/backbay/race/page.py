"""A race as one HTML file."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backbay.race.record import Report, Result
from backbay.race.sections import (
    Section,
    backends,
    graphs,
    is_timed,
    judged,
    reason,
    sections,
)
from backbay.reporting import wording
from backbay.reporting.page import rendered

_FIGURE_SPACE = "\u2007"
_PUNCTUATION_SPACE = "\u2008"
_FEW = 3


def write_page(report: Report, path: str | Path) -> None:
    """Write a report's page to a file."""
    Path(path).write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return a report's page; the same report always gives the same text."""
    from backbay.race.plots import colours, plots  # noqa: PLC0415 (matplotlib: half a second)

    names = backends(report)
    found = sections(report)
    drawn = [plots(section, names, f"plot-{number}") for number, section in enumerate(found)]
    return rendered(
        "backbay.race",
        report,
        noun="report",
        title=_title(names, found),
        sections=list(zip(found, map(_rows, found), drawn, strict=True)),
        backends=names,
        colours=colours(names),
        command=_command(report, found),
        overview=[(x, [_cell(x, name) for name in names]) for x in found] if len(found) > 1 else [],
        memory=wording.size(report.machine.memory_bytes),
        cores=wording.counted(report.machine.cores, "core"),
        nothing=wording.NOTHING,
    )


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A result in words."""

    result: Result
    chosen: bool
    timed: bool
    reason: str
    verdict: str
    median: wording.Reading
    to_eager: wording.Reading
    to_inductor: wording.Reading
    compile: str
    warmup: str
    pays_off: str
    peak: str
    compile_peak: str
    graphs: str


def _rows(section: Section) -> list[_Row]:
    results = section.results
    medians = [wording.milliseconds(r.median_ms, r.ci_ms) for r in results]
    to_eager = [wording.ratio(r.ratio_to_eager, r.ratio_to_eager_ci) for r in results]
    to_inductor = [wording.ratio(r.ratio_to_inductor, r.ratio_to_inductor_ci) for r in results]
    columns = zip(
        results, _aligned(medians), _aligned(to_eager), _aligned(to_inductor), strict=True
    )
    return [
        _Row(
            result=result,
            timed=is_timed(result),
            chosen=result.backend == section.winner,
            reason=reason(result),
            verdict=judged(result),
            median=median,
            to_eager=eager,
            to_inductor=inductor,
            compile=wording.seconds(result.compile_s),
            warmup=wording.seconds(result.warmup_s) if result.warmup_s else "",
            pays_off=wording.calls(section.break_even(result)),
            peak=wording.size(result.peak_bytes),
            compile_peak=wording.size(result.compile_peak_bytes)
            if result.compile_peak_bytes
            else "",
            graphs=graphs(result),
        )
        for result, median, eager, inductor in columns
    ]


def _aligned(readings: Sequence[wording.Reading]) -> list[wording.Reading]:
    """Pad with spaces as wide as a digit and as a point: the font has digits of one width."""
    known = [reading.value for reading in readings if reading.value != wording.NOTHING]
    values = iter(wording.aligned(known, space=_FIGURE_SPACE, point=_PUNCTUATION_SPACE))
    return [
        reading
        if reading.value == wording.NOTHING
        else wording.Reading(next(values), reading.interval)
        for reading in readings
    ]


def _cell(section: Section, backend: str) -> str:
    result = next((r for r in section.results if r.backend == backend), None)
    if result is None:
        return wording.NOTHING
    if result.status != "ok":
        return result.status
    return wording.ratio(result.ratio_to_eager, None).value


def _title(names: Sequence[str], found: Sequence[Section]) -> str:
    if not found:
        return "Nothing was raced"
    backends_ = _listed(names, "backend")
    return f"{backends_} on {_listed([section.workload for section in found], 'workload')}"


def _listed(names: Sequence[str], noun: str) -> str:
    if not 0 < len(names) <= _FEW:
        return wording.counted(len(names), noun)
    return wording.listed([wording.plain(name) for name in names])


def _command(report: Report, found: Sequence[Section]) -> str:
    settings = report.settings
    words = ["backbay", "race", *(section.workload for section in found)]
    if settings.backends:
        words += ["--backends", ",".join(settings.backends)]
    if settings.mode == "train":
        words += ["--train"]
    words += ["--dtype", settings.dtype, "--device", settings.device, "--seed", str(settings.seed)]
    return shlex.join(words)
