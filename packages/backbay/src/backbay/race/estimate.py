"""How long a workload's race will still take, from how long its parts have taken."""

import contextlib
import statistics
import time
from collections.abc import Iterator

_AGAIN = 0.5
"""Of a trial's time: compiling once more, from a warm cache, to be timed."""


class Estimate:
    """The time that is left."""

    def __init__(self, trials: int, at_once: int, timing_s: float) -> None:
        """Begin.

        Args:
            trials: how many there will be.
            at_once: how many of them at the same time.
            timing_s: seconds of timing that follow.
        """
        self._trials = trials
        self._at_once = at_once
        self._timing_s = timing_s
        self._taken: list[float] = []

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Note how long a trial takes."""
        start = time.monotonic()
        yield
        self._taken.append(time.monotonic() - start)

    def words(self) -> str:
        """Return what is left; empty before the first trial, which says how long one takes."""
        if not self._taken:
            return ""
        mean = statistics.fmean(self._taken)
        trials = mean * (self._trials - len(self._taken)) / self._at_once
        left = trials + mean * _AGAIN * self._trials + self._timing_s
        return f"about {clock(left)} left"


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
