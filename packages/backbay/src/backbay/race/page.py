"""A race as one HTML file, which needs nothing else: no network, no script library, no font.

Everything that comes from a report is escaped by the template; the report itself is embedded as
JSON, so that the page is also the record.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2

from backbay.race.record import Report, Result
from backbay.race.sections import Section, backends, is_timed, sections
from backbay.reporting import wording
from backbay.reporting.embedding import embedded

_TEMPLATE = "page.html.jinja"
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
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = wording.plain
    template = resources.files("backbay.race").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(template).render(
        report=report,
        title=_title(names, found),
        sections=list(zip(found, map(_rows, found), drawn, strict=True)),
        backends=names,
        colours=colours(names),
        command=_command(report, found),
        overview=_overview(found, names),
        memory=wording.size(report.machine.memory_bytes),
        cores=wording.counted(report.machine.cores, "core"),
        nothing=wording.NOTHING,
        json=embedded(report),
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
            reason=wording.reason(result),
            verdict=wording.judged(result),
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
            graphs=wording.graphs(result),
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


def _overview(found: Sequence[Section], names: Sequence[str]) -> list[tuple[Section, list[str]]]:
    """Cross workloads with backends, where there is more than one workload."""
    if len(found) <= 1:
        return []
    return [(section, [_cell(section, name) for name in names]) for section in found]


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
    *others, last = map(wording.plain, names)
    return f"{', '.join(others)} and {last}" if others else last


def _command(report: Report, found: Sequence[Section]) -> str:
    settings = report.settings
    words = ["backbay", "race", *(section.workload for section in found)]
    if settings.backends:
        words += ["--backends", ",".join(settings.backends)]
    if settings.mode == "train":
        words += ["--train"]
    words += ["--dtype", settings.dtype, "--device", settings.device, "--seed", str(settings.seed)]
    return shlex.join(words)
