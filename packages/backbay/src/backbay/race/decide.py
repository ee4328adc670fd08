"""Which backend to use, or that the measurement does not tell.

Eager holds the field until a backend is significantly faster: the whole interval of their ratio
lies above 1. Inductor, torch.compile's own default, challenges first; another backend then has to
be significantly faster than Inductor, not only than eager.
"""

from collections.abc import Sequence

from backbay.race.record import EAGER, Decision
from backbay.race.times import Times
from backbay.reporting.wording import listed
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

__all__ = ["EAGER", "INDUCTOR", "decide"]

INDUCTOR = "inductor"
_MOST_DIGITS = 4


def decide(workload: str, mode: Mode, times: Times) -> Decision:
    """Decide from the samples of every backend that was proven right.

    Args:
        workload: its canonical name.
        mode: what was timed.
        times: of eager, and of all that were proven right.
    """
    rivals = sorted(
        (name for name in times if name != EAGER),
        key=lambda name: (name != INDUCTOR, -times.ratio(EAGER, name)[0]),
    )
    holder = EAGER
    for rival in rivals:
        if times.ratio(holder, rival)[1][0] > 1.0:
            holder = rival
    if holder == EAGER:
        return _keep_eager(workload, mode, rivals, times)
    value, interval = times.ratio(EAGER, holder)
    tied = [rival for rival in rivals if rival != holder and _tied(rival, holder, times)]
    also = f"; {listed(tied)} cannot be told from it" if tied else ""
    return Decision(
        workload=workload,
        mode=mode,
        winner=holder,
        abstained=False,
        ratio_to_eager=value,
        ratio_to_eager_ci=interval,
        sentence=f"{holder} is {_times(value, interval)} eager{also}; use {holder}",
    )


def _keep_eager(workload: str, mode: Mode, rivals: Sequence[str], times: Times) -> Decision:
    tied = [rival for rival in rivals if _tied(rival, EAGER, times)]
    if not rivals:
        return _eager(workload, mode, "no other backend finished and was right; keep eager")
    if tied:
        value, interval = times.ratio(EAGER, tied[0])
        sentence = (
            f"no significant difference ({tied[0]} is {_times(value, interval)} eager); keep eager"
        )
        return _eager(workload, mode, sentence, abstained=True)
    best = max(rivals, key=lambda name: times.ratio(EAGER, name)[0])
    value, interval = times.ratio(EAGER, best)
    return _eager(
        workload,
        mode,
        f"every backend is slower: {best} is {_times(value, interval)} eager; keep eager",
    )


def _eager(workload: str, mode: Mode, sentence: str, *, abstained: bool = False) -> Decision:
    return Decision(
        workload=workload, mode=mode, winner=EAGER, abstained=abstained, sentence=sentence
    )


def _tied(rival: str, holder: str, times: Times) -> bool:
    low, high = times.ratio(holder, rival)[1]
    return low <= 1.0 <= high


def _times(value: float, interval: Interval) -> str:
    """Word a ratio; an interval that leaves out 1 never reads as if it held it."""
    digits = 2
    while digits < _MOST_DIGITS and any(round(end, digits) == 1.0 != end for end in interval):
        digits += 1
    low, high = interval
    return f"{value:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"
