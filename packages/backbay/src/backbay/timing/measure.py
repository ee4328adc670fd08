"""Interleaved timing: one block of calls of everyone in turn, in rounds.

A machine's speed drifts over seconds (clocks, temperature, neighbours). Taking one block of every
backend in each round lets the drift meet all of them alike. Each round is shuffled: in turns
of A B C everyone would run behind the same neighbour, in the clocks and caches that it left.
"""

import math
import random
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from backbay.session import Failure, NoReply

SHORTEST_BLOCK_S = 0.02
"""Shorter blocks are at the mercy of single interrupts."""
LONGEST_BLOCK_S = 0.1
"""Longer blocks would tell no more: from here on rounds are what narrows an interval."""
FEWEST_ROUNDS = 12
"""Below this a bootstrap interval of the median is not to be trusted."""
MOST_ROUNDS = 60
WARMUPS = 2
"""Calls before a block: caches hold another backend's data, and Dynamo's guards another's entry."""


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """The request to warm one backend up and to time a block of its calls."""

    backend: str
    warmups: int
    calls: int
    inputs: int = 0
    """Which set of inputs, of those that the process knows, the last call gets."""
    sample: bool = False
    """Whether what the last call gave is noted, after the clock has stopped."""


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """The reply: one block's time."""

    seconds: float
    """Of all calls together."""


class Timer(Protocol):
    """What answers blocks: a session, or one of its clients."""

    def ask(self, request: Block, /, *, timeout_s: float) -> Any:
        """Return `Timed`."""

    def stop(self) -> None:
        """Pause the process until `resume`."""

    def resume(self) -> None:
        """Let the process go on."""


class BlockLost(Exception):  # noqa: N818 (what happened to a backend, not an error of the race)
    """A backend that had been ready raised, died or hung while it was timed."""

    def __init__(self, backend: str, status: Failure, reason: str) -> None:
        super().__init__(f"{backend}: {reason}")
        self.backend = backend
        self.status = status
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many calls to time."""

    rounds: int
    calls: Mapping[str, int]
    """Backend to calls in a block."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What interleaved timing gave."""

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    """Backend to time a call, one sample a round."""
    unaccounted: dict[str, float] = field(default_factory=dict)
    """Backend to what its process did not report of the time of a block as it was seen from here,
    over what it did report; the middle one of all blocks."""


def plan(step_s: Mapping[str, float], budget_s: float, *, most_calls: int | None = None) -> Plan:
    """Return as many rounds as the time allows, within limits.

    Args:
        step_s: backend to seconds of one warm step.
        budget_s: seconds for the timing of all of them together.
        most_calls: that a block may have; default: as many as its time takes.
    """
    share_s = budget_s / (MOST_ROUNDS * len(step_s))
    block_s = min(max(share_s, SHORTEST_BLOCK_S), LONGEST_BLOCK_S)
    calls = {name: math.ceil(block_s / max(step, 1e-7)) for name, step in step_s.items()}
    if most_calls is not None:
        calls = {name: min(x, most_calls) for name, x in calls.items()}
    round_s = sum((calls[name] + WARMUPS) * step for name, step in step_s.items())
    fitting = int(budget_s / max(round_s, 1e-7))
    return Plan(rounds=min(max(fitting, FEWEST_ROUNDS), MOST_ROUNDS), calls=calls)


def interleave(
    sessions: Mapping[str, Timer],
    chosen: Plan,
    *,
    timeout_s: float,
    on_round: Callable[[int, int], None],
    sets: int = 1,
    sampled: Mapping[str, Collection[int]] = MappingProxyType({}),
    on_sample: Callable[[str, int], None] = lambda _name, _inputs: None,
) -> Samples:
    """Time every backend in every round.

    Args:
        sessions: backend to the session that it is ready in. Where there are several, the idle ones
            are stopped: a process that only waits disturbs the one that is timed.
        chosen: how much to time.
        timeout_s: seconds that one block may take.
        on_round: called with the number of rounds done and of all rounds.
        sets: how many sets of inputs the processes have; each round is of another one.
        sampled: backend to the rounds in which the result of its last call is noted.
        on_sample: called with backend and set of inputs when one was noted.

    Raises:
        BlockLost: a backend raised, or its process died or hung.
    """
    milliseconds: dict[str, list[float]] = {name: [] for name in sessions}
    unaccounted: dict[str, list[float]] = {name: [] for name in sessions}
    order, shuffled = list(sessions), random.Random(0)  # noqa: S311 (no secret)
    several = len({id(x) for x in sessions.values()}) > 1
    for index in range(chosen.rounds):
        shuffled.shuffle(order)
        for name in order:
            request = Block(
                backend=name,
                warmups=WARMUPS,
                calls=chosen.calls[name],
                inputs=index % sets,
                sample=index in sampled.get(name, ()),
            )
            session = sessions[name]
            if several:
                session.resume()
            taken, whole = _block(session, request, timeout_s)
            if request.sample:
                on_sample(name, request.inputs)
            if several:
                session.stop()
            milliseconds[name].append(1e3 * taken / request.calls)
            reported = taken * (request.calls + WARMUPS) / request.calls
            unaccounted[name].append(whole / max(reported, 1e-9) - 1.0)
        on_round(index + 1, chosen.rounds)
    middle = {name: statistics.median(x) for name, x in unaccounted.items()}
    return Samples(milliseconds=milliseconds, unaccounted=middle)


def _block(session: Timer, request: Block, timeout_s: float) -> tuple[float, float]:
    """Return the seconds that a block took by its process's clock, and by this one's."""
    start = perf_counter()
    try:
        reply = session.ask(request, timeout_s=timeout_s)
    except NoReply as error:
        raise BlockLost(request.backend, error.status, error.reason) from error
    assert isinstance(reply, Timed)
    return reply.seconds, perf_counter() - start
