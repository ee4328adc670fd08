"""A report as its reader meets it: a section for each workload, the fastest backend first."""

import functools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from backbay.errors import plain
from backbay.race.costs import compile_s
from backbay.race.crossings import Crossing, crossings
from backbay.race.objective import Objective
from backbay.race.record import EAGER, Decision, Report, Result
from backbay.reporting import wording
from backbay.reporting.wording import NEVER, NOTHING, Reading, counted, rough
from backbay.workloads.setup import Mode


@dataclass(frozen=True, kw_only=True)
class Section:
    """What was found of one workload."""

    workload: str
    mode: Mode
    objective: Objective
    decision: Decision | None
    results: tuple[Result, ...]
    """The arm to use, then the others that have a time, the best first; then those that have none,
    in the order raced."""

    @property
    def timed(self) -> tuple[Result, ...]:
        """The results that may be compared by their times: a wrong result has no speed."""
        return tuple(result for result in self.results if is_timed(result))

    @functools.cached_property
    def crossings(self) -> list[Crossing]:
        """Which arms take the least time in all, and from how many calls on."""
        return crossings(self.timed, warm=self.objective.warm)

    @property
    def order(self) -> str:
        """What the rows are ordered by."""
        best = {"memory": "the least memory", "total": "the least total time"}
        then = best.get(self.objective.kind, "the fastest")
        return f"The arm to use, then {then} first"

    @property
    def winner(self) -> str | None:
        """The arm to use, if one was decided on."""
        return _winner(self.decision)

    def break_even(self, result: Result) -> float | None:
        """Return after how many calls compiling has paid off, compared with eager.

        Returns:
            ``NEVER`` where the backend is slower; ``None`` where it is eager itself, was not timed,
            or where the interval of the ratio holds 1, so that it cannot be told.
        """
        eager = next((other for other in self.timed if other.arm == EAGER), None)
        if eager is None or result.arm == EAGER or result.compile_s is None:
            return None
        if eager.median_ms is None or result.median_ms is None or not is_timed(result):
            return None
        ratio = result.ratio_to_eager or eager.median_ms / result.median_ms
        low, high = result.ratio_to_eager_ci or (ratio, ratio)
        if high < 1:
            return NEVER
        if low <= 1 or ratio <= 1:
            return None
        return 1000 * result.compile_s / (result.median_ms * (ratio - 1))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A result in words."""

    result: Result
    name: str
    chosen: str
    """What to do with it, where it is the arm to use; else empty."""
    timed: bool
    reason: str
    notes: tuple[str, ...]
    """What a reader must know of it, and what slows it."""
    verdict: str
    median: Reading
    to_eager: Reading
    to_inductor: Reading
    compile: str
    warmup: str
    pays_off: str
    peak: str
    compile_peak: str
    graphs: str


def worded(section: Section) -> list[Row]:
    """Return a section's results in words."""
    return [
        Row(
            result=x,
            name=plain(x.arm),
            chosen=_advice(section) if x.arm == section.winner else "",
            timed=is_timed(x),
            reason=_reason(x),
            notes=(*x.notes, *_slowed(x)),
            verdict=_judged(x),
            median=wording.milliseconds(x.median_ms, x.ci_ms),
            to_eager=wording.ratio(x.ratio_to_eager, x.ratio_to_eager_ci),
            to_inductor=wording.ratio(x.ratio_to_inductor, x.ratio_to_inductor_ci),
            compile=wording.seconds(x.compile_s) + ("*" if x.compiled_beside else ""),
            warmup=wording.seconds(x.warmup_s) if x.warmup_s else "",
            pays_off=wording.calls(section.break_even(x)),
            peak=wording.size(x.peak_bytes),
            compile_peak=wording.size(x.compile_peak_bytes) if x.compile_peak_bytes else "",
            graphs=_graphs(x),
        )
        for x in section.results
    ]


def sections(report: Report) -> tuple[Section, ...]:
    """Group a report's results by workload, in the order raced."""
    raced: tuple[Decision | Result, ...] = (*report.decision, *report.results)
    found = {(x.workload, x.mode): x for x in report.decision}
    decided = {key: found.get(key) for key in dict.fromkeys((x.workload, x.mode) for x in raced)}
    return tuple(
        Section(
            workload=workload,
            mode=mode,
            objective=report.settings.objective,
            decision=decision,
            results=tuple(
                sorted(
                    (r for r in report.results if (r.workload, r.mode) == (workload, mode)),
                    key=functools.partial(_place, decision, report.settings.objective),
                )
            ),
        )
        for (workload, mode), decision in decided.items()
    )


def _place(
    decision: Decision | None, objective: Objective, result: Result
) -> tuple[bool, bool, float]:
    """Return what results are ordered by: a row that is advised must not stand below better ones.

    Where times can't be told apart, the advised arm is not always the one of the smallest median.
    """
    if not is_timed(result):
        return True, False, 0.0
    cost = {
        "memory": float(result.peak_bytes or 0),
        "total": (objective.calls or 0) * (result.median_ms or 0.0)
        + 1e3 * compile_s(objective, result, result.arm),
    }
    return False, result.arm != _winner(decision), cost.get(objective.kind, result.median_ms or 0.0)


def _winner(decision: Decision | None) -> str | None:
    return None if decision is None or decision.unclear else decision.winner


def _advice(section: Section) -> str:
    """Word what to do with the arm that was decided on."""
    abstained = section.decision is not None and section.decision.abstained
    return "keep this" if abstained else "use this"


def arms(report: Report) -> tuple[str, ...]:
    """Return every arm as one writes it, in the order asked for."""
    return tuple(dict.fromkeys([*report.settings.arms, *(r.arm for r in report.results)]))


def is_timed(result: Result) -> bool:
    """Whether a result has a time that counts."""
    return result.status == "ok" and result.median_ms is not None and result.median_ms > 0


def _judged(result: Result) -> str:
    """Word a verdict; empty where nothing was compared."""
    proof = result.verdict
    if proof is None:
        return "reference" if (result.arm, result.status) == (EAGER, "ok") else ""
    error = "" if proof.ratio is None else f"{rough(proof.ratio)}x eager's error"
    if proof.passed and proof.allowed is not None and error:
        error = f"{error}, {proof.allowed:.0%} of what is allowed"
    if proof.passed:
        return ", ".join(filter(None, ("right", error)))
    return ": ".join(
        filter(None, ("wrong", ", ".join(filter(None, (plain(proof.where or ""), error)))))
    )


def _slowed(result: Result) -> Iterator[str]:
    """Yield what slows an arm, and where to read more."""
    yield from result.waits
    yield from result.slow
    if result.slow:
        reference, _, _ = result.workload.partition(", batch ")  # which is none of explain's
        command = ["backbay", "explain", reference]
        command += ["--train"] if result.mode == "train" else []
        yield f"see {shlex.join([*command, '--backend', result.backend])}"


def _reason(result: Result) -> str:
    """Word why a result is not ``ok``; empty where it is."""
    if result.status == "ok":
        return ""
    proven = result.verdict.reason if result.verdict is not None else ""
    return plain(result.reason or proven) or "no reason was recorded"


def _graphs(result: Result) -> str:
    """Word into how many graphs the model was cut."""
    counts = ((result.graphs, "graph"), (result.breaks, "break"))
    return ", ".join(counted(n, noun) for n, noun in counts if n is not None) or NOTHING
