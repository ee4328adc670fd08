"""Compares a race with an earlier one, row by row.

A row fails only where its whole interval lies below the bar: a difference that a second race might
not repeat fails nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backbay.errors import InputError
from backbay.race.comparison import Basis, ComparedRow, Comparison
from backbay.race.record import EAGER, Report, Result
from backbay.race.times import eagers
from backbay.reporting import wording
from backbay.timing import stats
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

_Key = tuple[str, Mode, str]
_BASES: Mapping[Basis, str] = {
    "median_ms": "same machine and versions: median times are compared",
    "ratio_to_eager": "ratios to eager are compared, times are not",
    "status": "only what is right is compared, times and ratios are not",
}


def check_comparable(earlier: Report, *, mode: Mode, dtype: str) -> None:
    """Check that an earlier race was of the same kind of step and numbers.

    Raises:
        InputError: it was not, and no row of it can be compared.
    """
    settings = earlier.settings
    for name, was, now in (("mode", settings.mode, mode), ("dtype", settings.dtype, dtype)):
        if was != now:
            raise InputError(
                f"the race of {earlier.created} was of {name} {was}, and this one is of {now}: "
                "no row can be compared"
            )


def differences(earlier: Report, report: Report) -> Iterator[str]:
    """Yield how machine and versions differ, a line each."""
    for name in ("device", "processor", "cores"):  # a new kernel is no other machine
        was, now = getattr(earlier.machine, name), getattr(report.machine, name)
        if was != now:
            yield f"{name}: {was} then, {now} now"
    for name in sorted(earlier.versions.keys() | report.versions.keys()):
        was, now = (x.versions.get(name, "absent") for x in (earlier, report))
        if was != now:
            yield f"{name}: {was} then, {now} now"


def compared(report: Report, earlier: Report, fail_below: float | None = None) -> Comparison:
    """Compare a race with an earlier one.

    Args:
        report: this race.
        earlier: that one.
        fail_below: a row fails where it is surely less than so many times as fast.
    """
    found = tuple(differences(earlier, report))
    basis: Basis = "ratio_to_eager" if found else "median_ms"
    if earlier.machine.device != report.machine.device:
        basis = "status"
    pair = _Pair(earlier=earlier, report=report, basis=basis, bar=fail_below)
    rows = tuple(pair.rows())
    return Comparison(
        created=earlier.created,
        basis=basis,
        differences=found,
        fail_below=fail_below,
        sentence=_sentence(basis, rows, fail_below),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two races, and how they are compared."""

    earlier: Report
    report: Report
    basis: Basis
    bar: float | None

    def rows(self) -> Iterator[ComparedRow]:
        """Compare every row of either."""
        then, today = _by_key(self.earlier), _by_key(self.report)
        for key in dict.fromkeys([*today, *then]):
            was, now = then.get(key), today.get(key)
            yield ComparedRow(
                workload=key[0],
                mode=key[1],
                arm=key[2],
                was=None if was is None else was.status,
                now=None if now is None else now.status,
                **self._found(was, now),
            )

    def _found(self, was: Result | None, now: Result | None) -> dict[str, Any]:
        """Return the fields of a row that say how the two compare."""
        if was is None or now is None:
            return {"reason": f"not in {'the earlier' if was is None else 'this'} race"}
        if was.status != "ok":
            return {}
        if now.status != "ok":
            return {"failed": self.bar is not None, "reason": _lost(now)}
        if self.basis == "status":
            return {}
        if self.basis == "ratio_to_eager" and now.arm == EAGER:
            return {"reason": "the others are compared by it"}
        return self._timed(was, now)

    def _timed(self, was: Result, now: Result) -> dict[str, Any]:
        try:
            speed, interval = self._speed(was, now)
        except ValueError:
            return {"reason": "one of the two has no times to compare"}
        known = {"speed": speed, "speed_ci": interval}
        if self.bar is None or interval[1] >= self.bar:
            return known
        reading = wording.ratio(speed, interval)
        reason = f"{reading} as fast as on {self.earlier.created[:10]}, below {self.bar:g}x"
        return {**known, "failed": True, "reason": reason}

    def _speed(self, was: Result, now: Result) -> tuple[float, Interval]:
        if self.basis == "median_ms":
            return stats.ratio_apart(was.samples_ms, now.samples_ms)
        return stats.ratio_beside(
            *(was.samples_ms, eagers(was, self.earlier)),
            *(now.samples_ms, eagers(now, self.report)),
        )


def _by_key(report: Report) -> dict[_Key, Result]:
    return {(x.workload, x.mode, x.arm): x for x in report.results}


def _lost(now: Result) -> str:
    why = now.reason or (now.verdict.reason if now.verdict is not None else "")
    return ": ".join(filter(None, (f"was right, and is {now.status}", why)))


def _sentence(basis: Basis, rows: tuple[ComparedRow, ...], bar: float | None) -> str:
    known = _BASES[basis]
    if not any(row.compared for row in rows):
        return f"{known}; the two races have no row in common"
    if bar is None:
        return known
    failed = [f"{row.workload} with {row.arm}" for row in rows if row.failed]
    if not failed:
        return f"{known}; no row is surely below {bar:g}x"
    return f"{known}; {wording.counted(len(failed), 'row')} failed: {wording.listed(failed)}"
