"""A history as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from backbay.errors import plain
from backbay.history.record import History, Trace
from backbay.history.wording import TITLES, reading, when
from backbay.reporting import wording
from backbay.reporting.page import rendered

_FEW = 3


def write_page(history: History, path: str | Path) -> None:
    """Write a history's page to a file."""
    Path(path).write_text(page(history), encoding="utf-8")


def page(history: History) -> str:
    """Return a history's page; the same history always gives the same text."""
    from backbay.history.plots import colours, plot  # noqa: PLC0415 (matplotlib: half a second)

    drawn = [plot(history, trace, f"plot-{n}") for n, trace in enumerate(history.traces)]
    return rendered(
        "backbay.history",
        history,
        noun="history",
        title=_title(history.traces),
        metric=TITLES[history.metric],
        traces=[
            (trace, [(number, _cells(history, trace, number)) for number in trace.runs], svg)
            for trace, svg in zip(history.traces, drawn, strict=True)
        ],
        colours=colours(history),
        when=when,
        runs=wording.counted(len(history.runs), "run"),
    )


def _cells(history: History, trace: Trace, number: int) -> list[wording.Reading]:
    found = ({x.run: x for x in series.points}.get(number) for series in trace.series)
    return [reading(x, history.metric) for x in found]


def _title(traces: Sequence[Trace]) -> str:
    names = list(dict.fromkeys(plain(x.workload) for x in traces))
    if not 0 < len(names) <= _FEW:
        return wording.counted(len(names), "workload")
    return wording.listed(names)
