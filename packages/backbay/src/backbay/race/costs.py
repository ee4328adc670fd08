"""What arms cost, by the objective: what two of them are compared by."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from backbay.race.objective import Objective
from backbay.race.record import EAGER, Trying
from backbay.race.times import Times
from backbay.timing.interval import Interval

MATTERS = 0.03
"""Peak memory is measured once: a smaller difference may be none."""


class Costs(Protocol):
    """What arms cost, so that two of them can be compared."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the arms' names."""

    def __contains__(self, name: object, /) -> bool:
        """Whether an arm's cost is known."""

    def ratio(self, numerator: str, denominator: str) -> tuple[float, Interval]:
        """Return the cost of the first in terms of the second, and its interval."""


class Peaks(dict[str, int]):
    """Arm to the peak memory of one step."""

    def ratio(self, numerator: str, denominator: str) -> tuple[float, Interval]:
        """Return the peak of the first in terms of the second."""
        value = self[numerator] / self[denominator]
        return value, (value / (1 + MATTERS), value * (1 + MATTERS))


def costs(objective: Objective, times: Times, tried: Mapping[str, Trying]) -> Costs:
    """Return what is compared: times, totals or peaks, of all that were timed.

    Args:
        objective: what is decided by.
        times: of each that is right.
        tried: what was measured before.
    """
    if objective.kind == "memory":
        known = {name: tried[name].peak_bytes for name in times}
        return Peaks({name: peak for name, peak in known.items() if peak})
    if objective.kind != "total":
        return times
    assert objective.calls is not None, "the total has calls"
    return times.totals(objective.calls, {x: compile_s(objective, tried[x], x) for x in times})


def compile_s(objective: Objective, tried: Trying, name: str) -> float:
    """Return the seconds of compilation that count; eager compiles nothing."""
    if name == EAGER:
        return 0.0
    warm = tried.warm_compile_s if objective.warm else None
    return (warm if warm is not None else tried.compile_s) or 0.0
