"""Which arm to use, or that the measurement does not tell.

Eager holds the field until an arm is significantly better: the whole interval of their ratio lies
above 1. Inductor, torch.compile's own default, challenges first; another arm then has to be
significantly better than Inductor, not only than eager. What is compared is the objective's.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backbay.race.costs import Costs
from backbay.race.objective import Objective, worded
from backbay.race.record import EAGER, Decision
from backbay.race.times import Times
from backbay.reporting import wording
from backbay.reporting.machine import QUIET_CORES
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

__all__ = ["EAGER", "INDUCTOR", "Deciding", "decide", "with_exceptions"]

INDUCTOR = "inductor"
_MOST_DIGITS = 4
_VAGUE = 1.1
"""An interval whose end is so many times its beginning tells nothing that one could act on."""
_LONGER_S = 60.0


def decide(workload: str, mode: Mode, costs: Costs) -> Decision:
    """Decide from what every arm that was proven right costs; see `Deciding`."""
    return Deciding(workload=workload, mode=mode, costs=costs).decision()


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """What a decision is made from."""

    workload: str
    """Its canonical name."""
    mode: Mode
    costs: Costs
    """Of eager, and of all that were proven right."""
    objective: Objective = field(default_factory=Objective)
    excluded: Sequence[str] = ()
    """Who may not be chosen, because it needs more memory than there may be."""
    busy: float = 0.0
    """Cores that other processes used while arms were timed."""
    seconds: float | None = None
    """For which arms were timed; else nobody is told to time them for longer."""

    @functools.cached_property
    def _rivals(self) -> list[str]:
        return sorted(
            (name for name in self.costs if name != EAGER and name not in self.excluded),
            key=lambda name: (name != INDUCTOR, -self.costs.ratio(EAGER, name)[0]),
        )

    def decision(self) -> Decision:
        """Return which arm to use and why, or that nothing can be told."""
        if EAGER not in self.excluded:
            holder, challengers = EAGER, self._rivals
        elif not self._rivals:
            return self._made(EAGER, "nothing that is right fits; keep eager", abstained=True)
        else:
            holder, *challengers = self._rivals
        for rival in challengers:
            if self._beats(rival, holder):
                holder = rival
        if holder == EAGER:
            return self._keep_eager()
        tied = [x for x in self._rivals if x != holder and self._tied(x, holder)]
        also = f"; {wording.listed(tied)} cannot be told from it" if tied else ""
        return self._made(holder, f"{self._against_eager(holder)}{also}; use {holder}")

    def _beats(self, rival: str, holder: str) -> bool:
        value, (low, _) = self.costs.ratio(holder, rival)
        return low > 1.0 and value > 1.0 + self.objective.margin

    def _keep_eager(self) -> Decision:
        if not self._rivals:
            return self._made(EAGER, "no other backend finished and was right; keep eager")
        tied = [rival for rival in self._rivals if self._tied(rival, EAGER)]
        if tied and self.seconds is not None and any(map(self._is_vague, tied)):
            return msgspec.structs.replace(
                self._made(EAGER, self._vague(tied[0], self.seconds), abstained=True), unclear=True
            )
        if tied:
            why = f"no significant difference ({self._against_eager(tied[0])}); keep eager"
            return self._made(EAGER, why, abstained=True)
        best = max(self._rivals, key=lambda name: self.costs.ratio(EAGER, name)[0])
        against = self._against_eager(best)
        if self.costs.ratio(EAGER, best)[0] > 1.0:
            why = f"no arm is better by more than {self.objective.margin:.0%} ({against})"
            return self._made(EAGER, f"{why}; keep eager", abstained=True)
        worse = "needs more" if self.objective.kind == "memory" else "is slower"
        return self._made(EAGER, f"every backend {worse}: {against}; keep eager")

    def _is_vague(self, rival: str) -> bool:
        low, high = self.costs.ratio(EAGER, rival)[1]
        return high > _VAGUE * low

    def _vague(self, rival: str, seconds: float) -> str:
        """Return why nothing can be told: a busy machine is no reason to keep anything."""
        longer = f"--seconds {max(_LONGER_S, 3 * seconds):.0f}"
        if self.busy > QUIET_CORES:
            busy = f"the machine is busy ({self.busy:.1f} cores by others)"
            return f"cannot tell: {busy}; run again when idle, or with {longer}"
        scatter = f"times scatter too much ({self._against_eager(rival)})"
        return f"cannot tell: {scatter}; run again with {longer}"

    def _made(self, winner: str, sentence: str, *, abstained: bool = False) -> Decision:
        value, interval = (None, None) if winner == EAGER else self.costs.ratio(EAGER, winner)
        left_out = f"; {wording.listed(self.excluded)} would not fit" if self.excluded else ""
        return Decision(
            workload=self.workload,
            mode=self.mode,
            winner=winner,
            abstained=abstained,
            ratio_to_eager=value,
            ratio_to_eager_ci=interval,
            sentence=worded(self.objective) + sentence + left_out,
        )

    def _against_eager(self, name: str) -> str:
        value, interval = self.costs.ratio(EAGER, name)
        if self.objective.kind == "memory":
            return f"{name} needs {1 / value:.2f}x the memory of eager"
        return f"{name} is {_times(value, interval)} eager"

    def _tied(self, rival: str, holder: str) -> bool:
        low, high = self.costs.ratio(holder, rival)[1]
        return low <= 1.0 <= high


def with_exceptions(
    decided: Decision, parts: Mapping[str, Times], excluded: Sequence[str] = ()
) -> Decision:
    """Return a decision that says which calls have another arm that is faster for sure.

    Args:
        decided: of a step that calls the model several times.
        parts: the times of each call, by what it is called.
        excluded: who may not be chosen.
    """
    if decided.unclear:
        return decided
    found = {}
    for call, times in parts.items():
        best = decided.winner
        for name in times if best in times else ():
            if name not in excluded and times.ratio(best, name)[1][0] > 1.0:
                best = name
        if best != decided.winner:
            found[call] = best
    said = "".join(f"; for {call} alone {name} is faster" for call, name in found.items())
    return msgspec.structs.replace(decided, elsewhere=found, sentence=decided.sentence + said)


def _times(value: float, interval: Interval) -> str:
    """Word a ratio; an interval that leaves out 1 never reads as if it held it."""
    digits = 2
    while digits < _MOST_DIGITS and any(round(end, digits) == 1.0 != end for end in interval):
        digits += 1
    low, high = interval
    return f"{value:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"
