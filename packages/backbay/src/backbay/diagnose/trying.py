"""Tries a remedy: compiles with it, proves the result, counts, and times it beside what there was.

A gain is claimed only where it is counted (breaks, recompiles) and the step is not surely slower,
or where the step is faster by more than 3 % and the whole interval of the ratio lies above 1: many
remedies are tried, and of a smaller gain the next race may show nothing. Where nobody can say what
is right, the sentence says so.
"""

from collections.abc import Sequence

import msgspec

from backbay.causes import one_line
from backbay.decisions import GAIN
from backbay.diagnose.record import SideRecord, Status, TrialRecord
from backbay.diagnose.subject import Subject
from backbay.errors import ProofImpossible
from backbay.proof import Golden, make_golden
from backbay.proof.state import attributes_kept
from backbay.reporting.wording import counted, ratio, seconds
from backbay.timing import stats
from backbay.timing.interval import Interval
from backbay.timing.rounds import in_turns, plan

_TRUTH_S = 20.0


class Truth:
    """What is right for a workload, made when it is first asked for."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._golden: Golden | str | None = None

    def fault(self, subject: Subject) -> str:
        """Return what is wrong with a side's result; empty where nothing is, or nobody can say."""
        golden = self._made()
        if isinstance(golden, str) or self.unproven():
            return ""
        proof = golden.judge(subject.outcome(golden.at(subject.workload)))
        return "" if proof.passed else f"{proof.worst.where}: {proof.worst.reason}"

    def unproven(self) -> str:
        """Return why no result is held against it; empty where each is."""
        golden = self._made()
        if isinstance(golden, str):
            return golden
        return "the model draws random numbers" if golden.draws_random else ""

    def _made(self) -> Golden | str:
        if self._golden is None:
            one = self._subject
            try:
                with attributes_kept(one.workload.model), one.computing():
                    self._golden = make_golden(
                        one.workload, train=one.train, seed=one.seed, seconds=_TRUTH_S
                    )
            except ProofImpossible as error:
                self._golden = str(error)
        return self._golden


def tried(
    before: Subject, after: Subject, truth: Truth, *, calls_again: bool, timing_s: float
) -> TrialRecord:
    """Return what came of a remedy.

    Args:
        before: as it is; it is compiled anew where calls with other inputs count.
        after: with the remedy.
        truth: of the workload.
        calls_again: whether it is about what is compiled again.
        timing_s: seconds for the timing of both sides.
    """
    name = after.remedy.name
    if calls_again or before.side is None:
        before.compile(calls_again=calls_again)
    try:
        after.compile(calls_again=calls_again)
        if after.remedy.channels_last or after.remedy.matmul_precision:
            # Uncompiled, too, its result is laid out otherwise, or is less precise.
            truth = Truth(after)
        fault = truth.fault(after)
    except Exception as error:  # noqa: BLE001 (whatever a remedy brings about is its result)
        return TrialRecord(remedy=name, status="failed", sentence=f"it raises: {one_line(error)}")
    if fault:
        return TrialRecord(remedy=name, status="wrong", sentence=f"it changes the result: {fault}")
    samples = _timed(before, after, timing_s)
    sides = [_side(x, samples[key]) for key, x in (("before", before), ("after", after))]
    speedup, interval = stats.ratio(samples["before"], samples["after"])
    status = verdict(sides[0], sides[1], speedup, interval)
    return TrialRecord(
        remedy=name,
        status=status,
        sentence=sentence(
            sides[0],
            sides[1],
            speedup,
            interval,
            less_precise=bool(after.remedy.matmul_precision),
            unproven=truth.unproven(),
        ),
        before=sides[0],
        after=sides[1],
        speedup=speedup,
        speedup_ci=interval,
    )


def verdict(before: SideRecord, after: SideRecord, speedup: float, interval: Interval) -> Status:
    """Return what counts and times say of a remedy."""
    if interval[1] < 1 and speedup < 1 / (1 + GAIN):
        return "worse"
    pairs = ((before.breaks, after.breaks), (before.recompiles or 0, after.recompiles or 0))
    fewer = any(y < x for x, y in pairs) and all(y <= x for x, y in pairs)
    fewer = fewer and after.graphs > 0  # what is not compiled at all breaks nowhere
    faster = interval[0] > 1 and speedup > 1 + GAIN
    return "confirmed" if fewer or faster else "no_gain"


def sentence(
    before: SideRecord,
    after: SideRecord,
    speedup: float,
    interval: Interval,
    *,
    less_precise: bool = False,
    unproven: str = "",
) -> str:
    """Word what a remedy changed, and why its result was not proven right if it wasn't."""
    parts = [
        f"{counted(was or 0, noun)} before, {now or 0} after"
        for noun, was, now in (
            ("graph break", before.breaks, after.breaks),
            ("recompile", before.recompiles, after.recompiles),
        )
        if was or now
    ]
    parts.append(f"the step is {ratio(speedup, interval)} as fast")
    parts.append(
        f"compiling took {seconds(before.compile_s)} before, {seconds(after.compile_s)} after"
    )
    if less_precise:
        parts.append("factors are rounded to 10 bits of their 23, as uncompiled with this setting")
    if unproven:
        parts.append(f"its result was not proven right: {unproven}")
    return "; ".join(parts)


def _timed(before: Subject, after: Subject, timing_s: float) -> dict[str, list[float]]:
    sides = {"before": before, "after": after}
    steady = before.steady and after.steady  # both are timed in the same way
    # Two calls: the first may compile anew what the other side's calls displaced.
    step_s = {k: x.seconds(warmups=2, calls=1, steady=steady) for k, x in sides.items()}
    chosen = plan(step_s, timing_s)

    def block(name: str) -> float:
        warmups, calls = chosen.warmups[name], chosen.calls[name]
        return sides[name].seconds(warmups=warmups, calls=calls, steady=steady)

    samples: dict[str, list[float]] = {name: [] for name in sides}
    for taken in in_turns(sides, chosen, block):
        for name, value in taken.items():
            samples[name].append(value)
    return samples


def _side(subject: Subject, samples: Sequence[float]) -> SideRecord:
    assert subject.side is not None, "it was compiled"
    median, interval = stats.median(samples)
    return msgspec.structs.replace(
        subject.side, step_ms=median, step_ci_ms=interval, peak_bytes=subject.peak_bytes()
    )
