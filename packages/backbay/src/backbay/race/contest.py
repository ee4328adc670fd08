"""Who can still win while arms are timed, and whether more rounds would tell more.

Looking at samples again and again finds differences that are none. So it takes more than for a
decision: an arm is out when it is worse by a tenth for sure, and a difference is clear when it is
more than a fiftieth, or less, for sure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backbay.race.costs import Costs
from backbay.race.record import EAGER
from backbay.race.times import Times
from backbay.timing.interval import Interval

_WORSE = 1.1
"""An arm whose cost is so many times the best one's, or more, with its whole interval, is out."""
_CLEAR = 1.02
_EVERY = 4
"""Rounds, from the fewest on, after which it is looked at."""


@dataclass(kw_only=True)
class Contest:
    """The state of a race while it is timed."""

    cost_of: Callable[[Times], Costs]
    fewest: int
    """Rounds before which nothing is said."""
    out: set[str] = field(default_factory=set)
    """Who can't win any more; eager, which others are measured by, never is."""
    clear: bool = False
    """Whether more rounds would not change the decision."""

    def look(self, samples: Mapping[str, Sequence[float]]) -> set[str]:
        """Look at what has been sampled, one sample a round, if it is time; return who is out."""
        rounds = max(map(len, samples.values()), default=0)
        if EAGER not in samples or rounds < self.fewest or (rounds - self.fewest) % _EVERY:
            return self.out
        costs = self.cost_of(Times([samples]))
        left = [name for name in costs if name not in self.out]
        best = min(left, key=lambda name: costs.ratio(name, left[0])[0])
        against = {name: costs.ratio(name, best)[1] for name in left if name != best}
        self.out |= {name for name, (low, _) in against.items() if low > _WORSE and name != EAGER}
        self.clear = all(map(_is_clear, against.values()))
        return self.out


def _is_clear(interval: Interval) -> bool:
    low, high = interval
    return low > _CLEAR or (low > 1 / _CLEAR and high < _CLEAR)
