"""From how many calls on which arm has taken the least time, compilation counted."""

from collections.abc import Sequence
from dataclasses import dataclass

from backbay.race.record import EAGER, Result
from backbay.race.times import Times
from backbay.reporting import wording


@dataclass(frozen=True)
class Line:
    """An arm's total time, a straight line over the number of calls."""

    arm: str
    compile_s: float
    call_s: float

    def total_s(self, calls: float) -> float:
        """Return what compilation and so many calls take."""
        return self.compile_s + calls * self.call_s


@dataclass(frozen=True)
class Crossing:
    """Where an arm takes over from the one before."""

    calls: float
    line: Line


def lines(timed: Sequence[Result], *, warm: bool) -> list[Line]:
    """Return the lines of the results that have a time.

    Args:
        timed: the results.
        warm: whether compilation from a warm cache counts, where it was measured.
    """
    found = []
    for x in timed:
        seconds = x.warm_compile_s if warm and x.warm_compile_s is not None else x.compile_s
        compile_s = 0.0 if x.arm == EAGER else seconds
        if compile_s is not None and x.median_ms is not None:
            found.append(Line(x.arm, compile_s, x.median_ms / 1e3))
    return found


def crossings(timed: Sequence[Result], *, warm: bool) -> list[Crossing]:
    """Return who takes over, from the fewest calls on; eager is first, and is left out.

    An arm takes over only from one that it is significantly faster than.

    Args:
        timed: the results that have a time.
        warm: as for `lines`.
    """
    times, left = Times.of(timed), {x.arm: x for x in lines(timed, warm=warm)}
    holder, found = left.pop(EAGER, None), list[Crossing]()
    while holder is not None:
        faster = [x for x in left.values() if _is_faster(times, x.arm, holder.arm)]
        meeting = [Crossing(_meet(holder, x), x) for x in faster if x.call_s < holder.call_s]
        following = min(meeting, key=lambda x: (x.calls, x.line.call_s), default=None)
        if following is None:
            break
        found.append(following)
        holder = left.pop(following.line.arm)
    return found


def sentence(found: Sequence[Crossing]) -> str:
    """Return who pays after how many calls."""
    if not found:
        return "no arm takes less time than eager, however often it is called"
    said = [f"{x.line.arm} pays after {wording.calls(max(x.calls, 1))}" for x in found]
    return wording.listed(said)


def _meet(holder: Line, rival: Line) -> float:
    """Return from how many calls on a rival that is faster takes less; it may be none."""
    return max(0.0, (rival.compile_s - holder.compile_s) / (holder.call_s - rival.call_s))


def _is_faster(times: Times, rival: str, holder: str) -> bool:
    return rival in times and holder in times and times.ratio(holder, rival)[1][0] > 1.0
