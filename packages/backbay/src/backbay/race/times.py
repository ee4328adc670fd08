"""The times of a race: of backends that took turns, and of those that were timed apart."""

from collections.abc import Iterator, Mapping, Sequence

from backbay.race.record import EAGER, Report, Result
from backbay.timing import stats
from backbay.timing.interval import Interval

Samples = Mapping[str, Sequence[float]]
"""Backend to milliseconds a call, one sample a round."""


class Times(Mapping[str, Sequence[float]]):
    """Backend to its samples, in groups; who is in one group was timed in the same rounds.

    Each group holds eager, by which those of different groups are compared.
    """

    def __init__(self, groups: Sequence[Samples] = ()) -> None:
        self._groups = tuple(x for x in groups if EAGER in x)

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Times":
        """Return the times that results hold, of those that have any."""
        timed = [x for x in results if x.samples_ms]
        together = {x.arm: x.samples_ms for x in timed if not x.eager_samples_ms}
        apart = [
            {EAGER: x.eager_samples_ms, x.arm: x.samples_ms} for x in timed if x.eager_samples_ms
        ]
        return cls([together, *apart])

    def __getitem__(self, name: str) -> Sequence[float]:
        """Return a backend's samples; eager's are those of the first group."""
        return self._group(name)[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(dict.fromkeys(name for group in self._groups for name in group))

    def __len__(self) -> int:
        """Return the number of backends."""
        return len(list(iter(self)))

    def totals(self, calls: int, compile_s: Mapping[str, float]) -> "Times":
        """Return what so many calls take with compilation, which was measured once.

        Args:
            calls: how many.
            compile_s: seconds by backend.
        """
        return Times(
            [
                {name: [calls * x + 1e3 * compile_s[name] for x in of_one]
                 for name, of_one in group.items()}
                for group in self._groups
            ]
        )  # fmt: skip

    def without(self, name: str) -> "Times":
        """Return the times of all others."""
        return Times([{x: y for x, y in group.items() if x != name} for group in self._groups])

    def eagers(self, name: str) -> Sequence[float]:
        """Return eager's samples of the rounds that a backend was timed in."""
        group = self._group(name)
        return group[EAGER][: len(group[name])]

    def ratio(self, numerator: str, denominator: str) -> tuple[float, Interval]:
        """Return how many times as fast the second is as the first."""
        for group in self._groups:
            if numerator in group and denominator in group:
                return stats.ratio(*_together(group[numerator], group[denominator]))
        return stats.ratio_beside(
            *_together(self[numerator], self.eagers(numerator)),
            *_together(self[denominator], self.eagers(denominator)),
        )

    def _group(self, name: str) -> Samples:
        for group in self._groups:
            if name in group:
                return group
        raise KeyError(name)


def eagers(result: Result, report: Report) -> Sequence[float]:
    """Return eager's samples of the rounds that an arm was timed in."""
    if result.eager_samples_ms:
        return result.eager_samples_ms[: len(result.samples_ms)]
    found = (x for x in report.results if (x.arm, x.workload) == (EAGER, result.workload))
    eager = next((x for x in found if x.mode == result.mode), None)
    return () if eager is None else eager.samples_ms[: len(result.samples_ms)]


def between(report: Report, slower: str, faster: str) -> tuple[float, Interval]:
    """Return how many times as fast the second arm of a report's one workload is as the first."""
    rows = {x.arm: x for x in report.results}
    one, other = rows[slower], rows[faster]
    if not one.eager_samples_ms and not other.eager_samples_ms:  # in the same rounds
        return stats.ratio(*_together(one.samples_ms, other.samples_ms))
    return stats.ratio_beside(
        *(one.samples_ms, eagers(one, report)), *(other.samples_ms, eagers(other, report))
    )


def _together(
    one: Sequence[float], other: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the samples of the rounds that both were timed in: who can't win leaves earlier."""
    rounds = min(len(one), len(other))
    return one[:rounds], other[:rounds]
