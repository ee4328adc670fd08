"""What `backbay.choose` applied, timed anew: the record, and the table of many. No torch here."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from backbay.race import Report
from backbay.reporting.machine import Machine
from backbay.timing import stats
from backbay.timing.gpu_work import GpuWork
from backbay.timing.interval import Interval

CHOSEN = "chosen"
"""What the model that `backbay.choose` returned is called among the samples."""
INDUCTOR = "inductor"
WORSE = 0.03
"""By which what was chosen may be worse than the best arm."""
_RESAMPLES = 4000
Logarithms = npt.NDArray[np.float64]


class Anew(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, decided before, and timed in a process that raced nothing."""

    workload: str
    mode: str
    dtype: str
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    versions: dict[str, str]
    decided: str
    """The arm that `backbay.choose` applied."""
    why: str
    raced: bool
    """Whether it raced after all, as the store had nothing for it."""
    choose_s: float
    """How long it took: a capture by Dynamo and a look-up, or a race."""
    samples_ms: dict[str, list[float]]
    """Arm to one sample a round, of all that were right in the race, and of what was chosen."""
    gpu_work: dict[str, GpuWork] = {}
    """What the GPU does during a step of each; empty on a CPU."""
    failed: dict[str, str] = {}
    """Arms that were right in the race and could not be timed anew, and why."""
    said: tuple[str, ...] = ()
    """What backends said in the compile log."""
    busy: float
    """Cores that other processes used meanwhile."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its 95 % interval."""

    value: float
    interval: Interval

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> "Ratio":
        """Return the ratio of the medians of samples of the same rounds."""
        value, interval = stats.ratio(above, below)
        return cls(value=value, interval=interval)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.3f} [{low:.3f}, {high:.3f}]"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload's samples say."""

    workload: str
    mode: str
    decided: str
    best: str
    """The arm with the least median, timed anew."""
    over_best: Ratio
    """The time of what was chosen over the best arm's."""
    holds: bool
    """Whether that is not above 1.03 for sure."""
    over_inductor: Ratio | None
    """Inductor's time over that of what was chosen; ``null`` where Inductor was not right."""


def row(anew: Anew) -> Row:
    """Return a workload's row."""
    chosen = anew.samples_ms[CHOSEN]
    arms = {name: x for name, x in anew.samples_ms.items() if name != CHOSEN}
    best = min(arms, key=lambda name: stats.median(arms[name])[0])
    over_best = Ratio.of(chosen, arms[best])
    return Row(
        workload=anew.workload,
        mode=anew.mode,
        decided=anew.decided,
        best=best,
        over_best=over_best,
        holds=over_best.interval[0] <= 1.0 + WORSE and not anew.raced,
        over_inductor=Ratio.of(arms[INDUCTOR], chosen) if INDUCTOR in arms else None,
    )


def mean(found: Sequence[Anew]) -> Ratio | None:
    """Return the geometric mean of Inductor's times over those of what was chosen.

    Its interval is over rounds: the workloads are those that they are.
    """
    timed = [x.samples_ms for x in found if INDUCTOR in x.samples_ms]
    if not timed:
        return None
    logarithms = [_log_ratio(x, np.arange(len(x[CHOSEN]))[None]) for x in timed]
    draw = np.random.default_rng(0)
    resampled = [
        _log_ratio(x, draw.integers(0, len(x[CHOSEN]), (_RESAMPLES, len(x[CHOSEN])))) for x in timed
    ]
    low, high = np.percentile(np.exp(np.mean(resampled, axis=0)), [2.5, 97.5])
    return Ratio(value=float(np.exp(np.mean(logarithms))), interval=(float(low), float(high)))


def _log_ratio(samples: Mapping[str, Sequence[float]], rounds: npt.NDArray[np.int64]) -> Logarithms:
    above, below = np.asarray(samples[INDUCTOR]), np.asarray(samples[CHOSEN])
    found: Logarithms = np.log(np.median(above[rounds], axis=1) / np.median(below[rounds], axis=1))
    return found


def document(found: Sequence[Anew]) -> bytes:
    """Return everything as JSON, with what was computed from the samples."""
    made = {"mean_over_inductor": mean(found), "rows": [row(x) for x in found], "anew": found}
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def text(found: Sequence[Anew], reports: Mapping[tuple[str, str], Report], command: str) -> str:
    """Return the table as markdown.

    Args:
        found: what was timed anew.
        reports: by workload and step, the race before.
        command: that made it.
    """
    if not found:
        return "Nothing was timed anew.\n"
    return "\n".join([*_head(found, command), *_rows(found), "", *_arms(found, reports)]) + "\n"


def _head(found: Sequence[Anew], command: str) -> Iterator[str]:
    first, rows, over = found[0], [row(x) for x in found], mean(found)
    machine = first.machine
    device = machine.processor if machine.device == "cpu" else machine.device
    days = sorted({x.created[:10] for x in found})
    versions = ", ".join(f"{k} {v}" for k, v in sorted(first.versions.items()))
    yield "# What `backbay.choose` applies, timed anew"
    yield ""
    yield f"`{command}`; {' and '.join(days)}; {device}, {machine.cores} cores; {versions}."
    yield ""
    yield (
        f"{len(rows)} workloads. Each was raced and decided; then, in a new process, what `choose` "
        "applied was timed beside every arm that was right, in turns. Medians over rounds, 95 % "
        "intervals; *chosen / best* is a time over that of the arm that was the fastest anew, and "
        f"holds where it is not above {1 + WORSE:g} for sure."
    )
    yield ""
    held = sum(x.holds for x in rows)
    yield f"- not worse than the best arm by more than 3 %: {held} of {len(rows)}"
    if over is not None:
        yield f"- Inductor's default over what was chosen, geometric mean: **{over}**"
    again = [x.workload for x in found if x.raced]
    if again:
        yield f"- raced again, because the store had nothing for them: {', '.join(again)}"
    yield ""


def _rows(found: Sequence[Anew]) -> Iterator[str]:
    yield (
        "| workload | step | decided arm | chosen, ms | best arm anew | chosen / best | holds "
        "| inductor / chosen | choose, s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for anew in found:
        one = row(anew)
        cells = [
            _name(anew.workload),
            f"{anew.mode}, {anew.dtype}",
            one.decided,
            _time(anew, CHOSEN),
            one.best,
            str(one.over_best),
            "yes" if one.holds else "**no**",
            str(one.over_inductor or ""),
            f"{anew.choose_s:.1f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _arms(found: Sequence[Anew], reports: Mapping[tuple[str, str], Report]) -> Iterator[str]:
    names = dict.fromkeys(name for x in found for name in x.samples_ms if name != CHOSEN)
    others = dict.fromkeys(r.arm for x in reports.values() for r in x.results)
    names |= others
    yield "All arms, ms; on a GPU, in brackets, how long it is at work in a step:"
    yield ""
    yield f"| workload | {' | '.join(names)} | cores by others |"
    yield f"|---|{'---|' * len(names)}---|"
    for anew in found:
        cells = [_cell(anew, reports.get((anew.workload, anew.mode)), name) for name in names]
        yield f"| {_name(anew.workload)}, {anew.mode} | {' | '.join(cells)} | {anew.busy:.1f} |"


def _name(workload: str) -> str:
    """Return a workload's name without the file that it is built in."""
    return workload.rpartition(".py:")[2]


def _cell(anew: Anew, report: Report | None, name: str) -> str:
    if name in anew.samples_ms:
        return _time(anew, name)
    if name in anew.failed:
        return "failed anew"
    results = report.results if report is not None else ()
    return next((x.status for x in results if x.arm == name), "")


def _time(anew: Anew, name: str) -> str:
    value, (low, high) = stats.median(anew.samples_ms[name])
    work = anew.gpu_work.get(name)
    busy = "" if work is None else f" ({work.busy_ms:.4g})"
    return f"{value:.4g} [{low:.4g}, {high:.4g}]{busy}"
