"""The page's plots: a line for each arm over the runs of one workload."""

from collections.abc import Mapping
from datetime import datetime

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import MaxNLocator

from backbay.history.record import History, Metric, Series, Trace
from backbay.history.wording import TITLES, reading
from backbay.race.inline import COLOURS, INK, PAPER, inline, stand_in
from backbay.race.plots import AXIS, Plot, axes_at, styled
from backbay.race.record import EAGER

_HEIGHT = 260.0
_MARKERS = "osD^v"
_BYTES = 1 << 20


def colours(history: History) -> dict[str, int]:
    """Return the number of each arm's colour, ``--series-N`` on the page."""
    arms = dict.fromkeys(x.arm for trace in history.traces for x in trace.series if x.arm != EAGER)
    return {EAGER: COLOURS, **{name: number % COLOURS for number, name in enumerate(arms)}}


def plot(history: History, trace: Trace, prefix: str) -> Plot | None:
    """Draw one workload's arms over time; nothing where no arm has two values.

    Args:
        history: what the trace is part of.
        trace: what is drawn.
        prefix: begins every id in the drawing, so that none clashes with another on the page.
    """
    drawn = [x for x in trace.series if len(_values(x, history)) > 1]
    drawn = [x for x in drawn if x.arm != EAGER or history.metric != "ratio_to_eager"]
    if not drawn:
        return None
    with styled():
        figure, area = axes_at(_HEIGHT, left=AXIS)
        for number, series in enumerate(drawn):
            found = _values(series, history)
            times, values = list(map(_days, found)), list(found.values())
            colour = stand_in(colours(history)[series.arm])
            marker = _MARKERS[number // COLOURS % len(_MARKERS)]
            area.plot(times, values, color=colour, linewidth=1.5, alpha=0.7)
            area.plot(times, values, marker, color=colour, markeredgecolor=PAPER)
            for when, ends in _intervals(series, history).items():
                area.plot([_days(when)] * 2, ends, color=colour, linewidth=1.5)
        if history.metric.startswith("ratio"):
            area.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (3, 3)))
        area.grid(visible=True, axis="y")
        locator = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]
        area.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, show_offset=False)  # type: ignore[no-untyped-call]
        area.xaxis.set_major_formatter(formatter)
        area.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        area.set_ylabel(_unit(history.metric))
        return Plot(
            title=TITLES[history.metric].capitalize(),
            caption="One point a run, with its 95 % confidence interval where it has one.",
            description="; ".join(_described(x, history) for x in drawn),
            svg=inline(figure, prefix),
        )


def _days(when: datetime) -> float:
    """Return a time as matplotlib counts: days since 1970."""
    return when.timestamp() / 86_400


def _unit(metric: Metric) -> str:
    return "peak memory of a step, MiB" if metric == "peak_bytes" else TITLES[metric]


def _scale(metric: Metric) -> float:
    return _BYTES if metric == "peak_bytes" else 1.0


def _values(series: Series, history: History) -> Mapping[datetime, float]:
    return {
        datetime.fromisoformat(history.runs[x.run].created): x.value / _scale(history.metric)
        for x in series.points
        if x.value is not None
    }


def _intervals(series: Series, history: History) -> Mapping[datetime, tuple[float, float]]:
    return {
        datetime.fromisoformat(history.runs[x.run].created): x.interval
        for x in series.points
        if x.interval is not None
    }


def _described(series: Series, history: History) -> str:
    first, last = series.points[0], series.points[-1]
    start, end = (reading(x, history.metric).value for x in (first, last))
    return f"{series.arm} from {start} to {end}"
