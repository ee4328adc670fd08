"""Interleaved timing: one block of calls of everyone in turn, in rounds.

A machine's speed drifts over seconds (clocks, temperature, neighbours). Taking one block of every
backend in each round lets the drift meet all of them alike. Each round is shuffled: in turns
of A B C everyone would run behind the same neighbour, in the clocks and caches that it left.
"""

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

SHORTEST_BLOCK_S = 0.02
"""Shorter blocks are at the mercy of single interrupts."""
LONGEST_BLOCK_S = 0.1
"""Longer blocks would tell no more: from here on rounds are what narrows an interval."""
FEWEST_ROUNDS = 12
"""Below this a bootstrap interval of the median is not to be trusted."""
LEAST_ROUNDS = 6
"""Where steps are so long that more would take longer than they may: the interval of a median then
is about that of all samples."""
MOST_ROUNDS = 60
_SHARES = 4
"""Of the time of a round, a block has one such share, however many take turns: inputs differ from
call to call, so that a block's length decides what stands in caches."""
WARMUPS = 2
"""Calls before a block: caches hold another backend's data, and Dynamo's guards another's entry."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many calls to time."""

    rounds: int
    calls: Mapping[str, int]
    """Backend to calls in a block."""
    warmups: Mapping[str, int] = field(default_factory=dict)
    """Backend to calls before a block; default: two."""

    def block_calls(self, name: str) -> int:
        """Return the calls of a block of one backend, those before it counted."""
        return self.calls[name] + self.warmups.get(name, WARMUPS)


def plan(
    step_s: Mapping[str, float],
    budget_s: float,
    *,
    most_calls: int | None = None,
    fewest: int = FEWEST_ROUNDS,
) -> Plan:
    """Return as many rounds as the time allows, within limits.

    Args:
        step_s: backend to seconds of one warm step.
        budget_s: seconds for the timing of all of them together. It alone decides how long blocks
            are: who else takes part changes nothing for a backend.
        most_calls: that a block may have; default: as many as its time takes.
        fewest: rounds that there are, however long they take.
    """
    block_s = min(max(budget_s / (MOST_ROUNDS * _SHARES), SHORTEST_BLOCK_S), LONGEST_BLOCK_S)
    calls = {name: math.ceil(block_s / max(step, 1e-7)) for name, step in step_s.items()}
    if most_calls is not None:
        calls = {name: min(x, most_calls) for name, x in calls.items()}
    # A step as long as a block is has caches to itself after one call.
    warmups = {name: 1 if step > LONGEST_BLOCK_S else WARMUPS for name, step in step_s.items()}
    round_s = sum((calls[name] + warmups[name]) * step for name, step in step_s.items())
    fitting = int(budget_s / max(round_s, 1e-7))
    return Plan(rounds=min(max(fitting, fewest), MOST_ROUNDS), calls=calls, warmups=warmups)


def in_turns(
    names: Collection[str],
    chosen: Plan,
    block: Callable[[str], float],
    out: Collection[str] = (),
) -> Iterator[Mapping[str, float]]:
    """Time everyone in every round; yield what each round gave, by name in milliseconds a call.

    Args:
        names: whom to time.
        chosen: how much.
        block: returns the seconds that a block of calls of one took.
        out: who is left out, asked before each round.
    """
    order, shuffled = list(names), random.Random(0)  # noqa: S311 (no secret)
    for _ in range(chosen.rounds):
        shuffled.shuffle(order)
        yield {name: 1e3 * block(name) / chosen.calls[name] for name in order if name not in out}
