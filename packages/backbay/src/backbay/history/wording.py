"""How values of each metric read."""

from collections.abc import Mapping

from backbay.history.record import Metric, Point
from backbay.reporting import wording
from backbay.reporting.wording import Reading

TITLES: Mapping[Metric, str] = {
    "ratio_to_eager": "times as fast as eager",
    "ratio_to_inductor": "times as fast as inductor",
    "median_ms": "median time of a step, ms",
    "compile_s": "seconds to compile",
    "peak_bytes": "peak memory of a step",
}


def reading(point: Point | None, metric: Metric) -> Reading:
    """Word what one run found; where there is no value, its status says why."""
    if point is None:
        return Reading(wording.NOTHING)
    if point.value is None:
        return Reading(wording.NOTHING if point.status == "ok" else point.status)
    match metric:
        case "median_ms":
            return wording.milliseconds(point.value, point.interval)
        case "compile_s":
            return Reading(wording.seconds(point.value))
        case "peak_bytes":
            return Reading(wording.size(point.value))
        case _:
            return wording.ratio(point.value, point.interval)


def when(created: str) -> str:
    """Word a time, to the minute."""
    return created[:16].replace("T", " ")
