"""A report as its reader meets it: a section for each workload, the fastest backend first."""

from collections.abc import Iterator
from dataclasses import dataclass

from backbay.race.record import Decision, Report, Result
from backbay.reporting.wording import EAGER, NEVER
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode


@dataclass(frozen=True, kw_only=True)
class Section:
    """What was found of one workload."""

    workload: str
    mode: Mode
    decision: Decision | None
    results: tuple[Result, ...]
    """Those with a time, fastest first; then the others, in the order raced."""

    @property
    def timed(self) -> tuple[Result, ...]:
        """The results that may be compared by their times: a wrong result has no speed."""
        return tuple(result for result in self.results if is_timed(result))

    @property
    def winner(self) -> str | None:
        """The backend to use, if one was decided on."""
        return None if self.decision is None else self.decision.winner

    def break_even(self, result: Result) -> float | None:
        """Return after how many calls compiling has paid off, compared with eager.

        Returns:
            ``NEVER`` where the backend is slower; ``None`` where it is eager itself, was not timed,
            or where the interval of the ratio holds 1, so that it cannot be told.
        """
        eager = next((other for other in self.timed if other.backend == EAGER), None)
        if eager is None or result.backend == EAGER or result.compile_s is None:
            return None
        if eager.median_ms is None or result.median_ms is None or not is_timed(result):
            return None
        low, high = _ratio_interval(result, eager.median_ms / result.median_ms)
        if high < 1:
            return NEVER
        if low <= 1 or eager.median_ms <= result.median_ms:
            return None
        return 1000 * result.compile_s / (eager.median_ms - result.median_ms)


def sections(report: Report) -> tuple[Section, ...]:
    """Group a report's results by workload, in the order raced."""
    return tuple(
        Section(
            workload=workload,
            mode=mode,
            decision=next(
                (d for d in report.decision if (d.workload, d.mode) == (workload, mode)), None
            ),
            results=tuple(
                sorted(
                    (r for r in report.results if (r.workload, r.mode) == (workload, mode)),
                    key=_rank,
                )
            ),
        )
        for workload, mode in dict.fromkeys(_raced(report))
    )


def backends(report: Report) -> tuple[str, ...]:
    """Return every backend's name, in the order asked for."""
    return tuple(dict.fromkeys([*report.settings.backends, *(r.backend for r in report.results)]))


def is_timed(result: Result) -> bool:
    """Whether a result has a time that counts."""
    return result.status == "ok" and result.median_ms is not None and result.median_ms > 0


def _raced(report: Report) -> Iterator[tuple[str, Mode]]:
    yield from ((decision.workload, decision.mode) for decision in report.decision)
    yield from ((result.workload, result.mode) for result in report.results)


def _rank(result: Result) -> tuple[bool, float]:
    if not is_timed(result) or result.median_ms is None:
        return True, 0.0
    return False, result.median_ms


def _ratio_interval(result: Result, ratio: float) -> Interval:
    return result.ratio_to_eager_ci or (ratio, ratio)
