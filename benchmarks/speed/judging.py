"""What samples say: ratios with intervals, who is slower, what is undecided, geometric means."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backbay.timing import stats
from speed.record import Entry, Sampled

SLOWER = 0.98
"""A regression is certain when the whole interval lies below."""
NARROW = 0.01
"""Half an interval's width, of its value, that decides nothing any more when it is wider."""
EXTENSIONS = 2
"""How often as much is timed again while a ratio is undecided, before the run ends."""
MOST_RUNS = 3
"""A workload that stays undecided is not run more often than this."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One arm's time over another's, with its 95 % interval: above 1, the other is faster."""

    value: float
    low: float
    high: float

    @property
    def undecided(self) -> bool:
        """Whether the interval is wider than ±1 % of the value."""
        return self.high - self.low > 2 * NARROW * self.value

    @property
    def slower(self) -> bool:
        """Whether the other is certainly below 0.98 times: the interval's upper end is."""
        return self.high < SLOWER

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def samples(entry: Entry, arm: str) -> tuple[float, ...]:
    """Return an arm's milliseconds, of all runs."""
    timed = (run.arms[arm] for run in entry.runs if arm in run.arms)
    return tuple(value for found in timed for value in found.samples_ms)


def ratio(entry: Entry, above: str, below: str) -> Ratio | None:
    """Return one arm's time over another's, from the runs that timed both; else nothing."""
    one: list[float] = []
    other: list[float] = []
    for run in entry.runs:
        first, second = run.arms.get(above), run.arms.get(below)
        if first and second and first.samples_ms and second.samples_ms:
            one += first.samples_ms
            other += second.samples_ms
    return ratio_of(one, other) if one else None


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the ratio of medians of samples of the same rounds."""
    value, (low, high) = stats.ratio(above, below)
    return Ratio(value=value, low=low, high=high)


def latest(entry: Entry, arm: str) -> Sampled | None:
    """Return how an arm did when it was last tried."""
    return next((run.arms[arm] for run in reversed(entry.runs) if arm in run.arms), None)


def best(entry: Entry, stock: Sequence[str], ours: Sequence[str]) -> tuple[str, Ratio] | None:
    """Return the fastest stock arm, and its time over that of the fastest arm of ours."""
    fastest = {name: fastest_of(entry, group) for name, group in (("s", stock), ("o", ours))}
    if fastest["s"] is None or fastest["o"] is None:
        return None
    found = ratio(entry, fastest["s"], fastest["o"])
    return None if found is None else (fastest["s"], found)


def fastest_of(entry: Entry, arms: Iterable[str]) -> str | None:
    """Return the arm with the least median, of those that were timed."""
    medians = {x: stats.median(samples(entry, x))[0] for x in arms if samples(entry, x)}
    return min(medians, key=lambda x: medians[x]) if medians else None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; of nothing it is 1."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0


def to_run(entry: Entry | None, wanted: Sequence[str], *, above: str, below: str) -> list[str]:
    """Return the arms that a workload is to be run with: what is missing, or all, or none.

    Arms that were tried and failed are not tried again. What is missing runs beside the two arms
    that everything is measured by. An undecided ratio is measured again, up to a limit.
    """
    if entry is None or not entry.runs:
        return list(wanted)
    failed = {x for x in wanted if (last := latest(entry, x)) and last.status != "ok"}
    missing = [x for x in wanted if latest(entry, x) is None]
    pair = [x for x in (above, below) if x in wanted and x not in failed]
    if missing:
        return [x for x in wanted if x in missing or x in pair]
    between = ratio(entry, above, below)
    again = between is not None and between.undecided and len(entry.runs) < MOST_RUNS
    return pair if again else []


class Extending:
    """Whether to time as much again: while the ratio of two arms is undecided."""

    def __init__(self, above: str, below: str) -> None:
        self._pair = (above, below)
        self._left = EXTENSIONS

    def __call__(self, samples: Mapping[str, Sequence[float]]) -> bool:
        """Decide from the samples so far."""
        if self._left == 0 or any(not samples.get(x) for x in self._pair):
            return False
        self._left -= 1
        above, below = self._pair
        return ratio_of(samples[above], samples[below]).undecided
