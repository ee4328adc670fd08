"""The page's plots: what is drawn of one workload's results.

Matplotlib takes half a second to import: only a page being drawn imports this.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

from backbay.errors import plain
from backbay.race.crossings import lines, sentence
from backbay.race.inline import COLOURS, FAINT, INK, PAPER, inline, stand_in
from backbay.race.labels import label
from backbay.race.record import EAGER, Result
from backbay.race.sections import Section
from backbay.reporting import wording
from backbay.timing.interval import Interval

_MARKERS = "osD^v"  # their shapes tell backends apart when the colours come round again
_WIDTH = 460.0  # units of the drawing; on a page 460 wide, one unit is one pixel
_MARGIN = 4.0
_BELOW = 44.0  # the x axis: its numbers and its title
AXIS = 44.0  # the y axis, likewise
_ROW = 40.0
_FONT = 12.5
_SMALL = 11.0
_LONGEST_NAME = 40
_MOST_CALLS = 10  # times as many as where the last arm takes over
_LINES_SHARE = 0.62  # of the width
_STEPS = 60  # points of a line that is bent by its logarithmic axes
_LOGARITHMIC_FROM = 20  # largest over smallest: beyond it, a linear axis hides the small ones

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "backbay",
    "text.parse_math": False,  # a dollar sign in a backend's name is a dollar sign
    "font.size": _FONT,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": _SMALL,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": _SMALL,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": _SMALL,
    "figure.facecolor": "none",
    "lines.solid_capstyle": "butt",
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing, and the words for whoever does not see it."""

    title: str
    caption: str
    description: str
    svg: str


def plots(section: Section, arms: Sequence[str], prefix: str) -> list[Plot]:
    """Draw what was measured of one workload; nothing where there is nothing to compare.

    Args:
        section: the workload's results.
        arms: every arm of the report, so that each keeps its colour across workloads.
        prefix: begins every id in the drawings, so that none clashes with another on the page.
    """
    series = _series(arms)
    with styled():
        drawn = [draw(section, series) for draw in (_speed, _samples, _total, _compiling, _memory)]
        return [
            Plot(
                title=drawing.title,
                caption=drawing.caption,
                description=f"{drawing.title}. {'; '.join(drawing.values)}.",
                svg=inline(drawing.figure, f"{prefix}-{number}"),
            )
            for number, drawing in enumerate(drawn)
            if drawing is not None
        ]


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in the page's style, and not in the user's: one report, one page, everywhere."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def colours(arms: Sequence[str]) -> dict[str, int]:
    """Return the number of each arm's colour, ``--series-N`` on the page."""
    others = {name: number % COLOURS for name, number in _series(arms).items()}
    return {EAGER: COLOURS, **others}


def _series(arms: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(n for n in arms if n != EAGER)}


@dataclass(frozen=True)
class _Drawing:
    title: str
    caption: str
    values: Sequence[str]
    figure: Figure


def _speed(section: Section, series: Mapping[str, int]) -> _Drawing | None:
    rows = [r for r in section.timed if r.ratio_to_eager is not None]
    if len(rows) < 2:  # noqa: PLR2004 (a bar alone compares nothing)
        return None
    readings = [wording.ratio(r.ratio_to_eager, r.ratio_to_eager_ci) for r in rows]
    figure, axes = _rows(rows, [str(reading) for reading in readings])
    for y, row in enumerate(rows):
        _bar(axes, y, row.ratio_to_eager or 0.0, _colour(row.arm, series))
        _whisker(axes, y, row.ratio_to_eager_ci)
    axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (3, 3)))
    axes.set_xlim(left=0.0)
    axes.set_xlabel("times as fast as eager")
    return _Drawing(
        "Speed",
        "Eager's median time over each backend's; longer is faster, the dashed line is eager. "
        "Whiskers are 95 % confidence intervals.",
        [f"{r.arm} {reading}" for r, reading in zip(rows, readings, strict=True)],
        figure,
    )


def _samples(section: Section, series: Mapping[str, int]) -> _Drawing | None:
    rows = [r for r in section.timed if r.samples_ms]
    if not rows:
        return None
    readings = [wording.milliseconds(r.median_ms, r.ci_ms) for r in rows]
    figure, axes = _rows(rows, [f"{reading.value} ms" for reading in readings])
    for y, row in enumerate(rows):
        count = len(row.samples_ms)
        heights = [y + 0.3 * ((n + 0.5) / count - 0.5) for n in range(count)]
        colour = _colour(row.arm, series)
        axes.plot(row.samples_ms, heights, ".", color=colour, markersize=4.5, alpha=0.75)
        axes.plot([row.median_ms or 0.0] * 2, [y - 0.2, y + 0.2], color=INK, linewidth=1.4)
    _span(axes, [sample for row in rows for sample in row.samples_ms])
    axes.set_xlabel("milliseconds a call")
    return _Drawing(
        "Every sample",
        "One dot a round, the first round at the top of its band: a slope or a step down the band "
        "is drift. The upright line is the median.",
        [
            f"{r.arm} median {reading.value} ms, "
            f"{wording.counted(len(r.samples_ms), 'sample')} from "
            f"{min(r.samples_ms):.4g} to {max(r.samples_ms):.4g} ms"
            for r, reading in zip(rows, readings, strict=True)
        ],
        figure,
    )


def _total(section: Section, series: Mapping[str, int]) -> _Drawing | None:
    found = lines(section.timed, warm=section.objective.warm)
    if len(found) < 2:  # noqa: PLR2004 (a line alone crosses nothing)
        return None
    meetings = section.crossings
    most = _MOST_CALLS * max([1.0, *(x.calls for x in meetings), section.objective.calls or 1])
    calls = [10 ** (math.log10(most) * step / _STEPS) for step in range(_STEPS + 1)]
    figure, axes = axes_at(300.0, left=AXIS)
    for line in found:
        colour = _colour(line.arm, series)
        axes.plot(calls, [line.total_s(x) for x in calls], color=colour, linewidth=1.8)
    for meeting in (x for x in meetings if x.calls >= 1):
        axes.plot(meeting.calls, meeting.line.total_s(meeting.calls), "o", color=INK, markersize=5)
    axes.set_yscale("log")
    axes.grid(visible=True, axis="y")
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _position: f"{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _logarithmic(axes, calls)
    axes.set_xlim(1.0, most ** (1 / _LINES_SHARE))  # the rest is for the names
    axes.set_xlabel("calls")
    axes.set_ylabel("seconds in all")
    names = [wording.elided(plain(x.arm), _LONGEST_NAME) for x in found]
    ends = [(most, x.total_s(most)) for x in found]
    label(figure, axes, names, ends, font=_FONT, frame=(AXIS, _BELOW))
    cache = "from a warm cache" if section.objective.warm else "in an empty cache"
    return _Drawing(
        "Total time against calls",
        f"Compilation {cache} and so many calls; lower is better. A dot is where an arm takes "
        f"over: {sentence(meetings)}.",
        [
            f"{x.arm} {wording.seconds(x.compile_s)} and {1e3 * x.call_s:.4g} ms a call"
            for x in found
        ],
        figure,
    )


def _compiling(section: Section, series: Mapping[str, int]) -> _Drawing | None:
    rows = [r for r in section.timed if r.compile_s and r.ratio_to_eager is not None]
    if not rows:
        return None
    figure, axes = axes_at(300.0, left=AXIS)
    xs = [row.compile_s or 0.0 for row in rows]
    ys = [row.ratio_to_eager or 0.0 for row in rows]
    for row, x, y in zip(rows, xs, ys, strict=True):
        marker = _MARKERS[series.get(row.arm, 0) // COLOURS % len(_MARKERS)]
        colour = _colour(row.arm, series)
        axes.plot([x, x], row.ratio_to_eager_ci or (y, y), color=colour, linewidth=1.5)
        axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor=PAPER)
    axes.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (3, 3)))
    axes.grid(visible=True, axis="y")
    _logarithmic(axes, xs)
    ends = [*ys, *(end for row in rows for end in row.ratio_to_eager_ci or ()), 1.0]
    room = 0.12 * (max(ends) - min(ends)) or 0.1
    axes.set_ylim(max(min(ends) - room, 0.0), max(ends) + room)
    axes.set_xlabel("seconds to compile")
    axes.set_ylabel("times as fast as eager")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    names = [wording.elided(plain(r.arm), _LONGEST_NAME) for r in rows]
    points = list(zip(xs, ys, strict=True))
    label(figure, axes, names, points, font=_FONT, frame=(AXIS, _BELOW))
    return _Drawing(
        "Compile time against speed",
        "Up is faster, left compiles sooner; the dashed line is eager, which compiles nothing. "
        "The table says after how many calls compiling has paid off.",
        [
            f"{row.arm} compiles in {wording.seconds(row.compile_s)} and is "
            f"{wording.ratio(row.ratio_to_eager, None)} eager, "
            f"pays off: {wording.calls(section.break_even(row))}"
            for row in rows
        ],
        figure,
    )


def _memory(section: Section, series: Mapping[str, int]) -> _Drawing | None:
    rows = [r for r in section.timed if r.peak_bytes]
    if len(rows) < 2:  # noqa: PLR2004 (a bar alone compares nothing)
        return None
    figure, axes = _rows(rows, [wording.size(row.peak_bytes) for row in rows])
    largest = max(max(r.peak_bytes or 0, r.compile_peak_bytes or 0) for r in rows)
    unit = wording.size(largest).split()[-1]
    scale = 1024.0 ** wording.SIZES.index(unit)
    for y, row in enumerate(rows):
        _bar(axes, y, (row.peak_bytes or 0) / scale, _colour(row.arm, series))
        if row.compile_peak_bytes:
            axes.plot(
                [row.compile_peak_bytes / scale] * 2, [y - 0.2, y + 0.2], color=INK, linewidth=1.4
            )
    axes.set_xlim(left=0.0)
    axes.set_xlabel(unit)
    return _Drawing(
        "Peak memory",
        "While running one compiled step. An upright line is the peak while compiling.",
        [
            f"{r.arm} {wording.size(r.peak_bytes)} running, "
            f"{wording.size(r.compile_peak_bytes)} compiling"
            for r in rows
        ],
        figure,
    )


def axes_at(height: float, *, left: float) -> tuple[Figure, Axes]:
    """Return a figure of this height, and axes that begin this far from its left end."""
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    axes = figure.add_axes(
        (
            left / _WIDTH,
            _BELOW / height,
            1 - (left + _MARGIN) / _WIDTH,
            1 - (_BELOW + 6) / height,
        )
    )
    axes.tick_params(length=0, pad=5)
    axes.margins(x=0.04)
    return figure, axes


def _rows(results: Sequence[Result], values: Sequence[str]) -> tuple[Figure, Axes]:
    """Draw a band for each backend, its name and value above it: names of any length fit."""
    figure, axes = axes_at(_ROW * len(results) + 50, left=_MARGIN)
    axes.set_ylim(len(results) - 0.6, -0.7)
    axes.yaxis.set_major_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(visible=True, axis="x")
    place = blended_transform_factory(axes.transAxes, axes.transData)
    for y, (result, value) in enumerate(zip(results, values, strict=True)):
        name = wording.elided(plain(result.arm), _LONGEST_NAME)
        text: dict[str, Any] = {"transform": place, "verticalalignment": "baseline"}
        axes.text(0.0, y - 0.28, name, **text)
        axes.text(1.0, y - 0.28, value, horizontalalignment="right", fontsize=_SMALL, **text)
    return figure, axes


def _bar(axes: Axes, y: float, value: float, colour: str) -> None:
    axes.barh(y, value, height=0.3, color=colour, alpha=0.8)


def _whisker(axes: Axes, y: float, interval: Interval | None) -> None:
    if interval is None or interval[0] == interval[1]:
        return
    axes.plot(interval, [y, y], color=INK, linewidth=1.4)
    for end in interval:
        axes.plot([end, end], [y - 0.11, y + 0.11], color=INK, linewidth=1.4)


def _span(axes: Axes, values: Sequence[float]) -> None:
    if max(values) > _LOGARITHMIC_FROM * min(values) > 0:
        _logarithmic(axes, values)
        return
    if max(values) == min(values):
        axes.set_xlim(values[0] * 0.9, values[0] * 1.1)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.5, max(values) * 1.5)
    axes.xaxis.set_major_locator(LogLocator(subs=_steps(max(values) / min(values))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _position: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _steps(span: float) -> tuple[float, ...]:
    """Choose which multiples of powers of ten an axis of this span has room for."""
    if span < 5:  # noqa: PLR2004 (no power of ten, or one)
        return (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    return (1.0, 2.0, 5.0) if span < 100 else (1.0,)  # noqa: PLR2004 (two powers of ten)


def _colour(backend: str, series: Mapping[str, int]) -> str:
    if backend == EAGER:
        return stand_in(COLOURS)
    return stand_in(series.get(backend, 0) % COLOURS)
