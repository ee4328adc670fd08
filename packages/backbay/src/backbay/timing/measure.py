"""Interleaved timing of backends in sessions: `rounds`, asked of child processes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from backbay.session import Failure, NoReply
from backbay.timing.rounds import WARMUPS, Plan, in_turns


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """The request to warm one backend up and to time a block of its calls."""

    backend: str
    warmups: int
    calls: int
    sample: bool = False
    """Whether what the last call gave is noted, after the clock has stopped."""
    waits: bool = False
    """Whether the device has finished each call before the next begins."""
    part: int | None = None
    """Which of a step's calls is timed by itself, where it has several."""


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """The reply: one block's time."""

    seconds: float
    """Of all calls together."""
    whole_s: float | None = None
    """From the request to the reply, by the same clock; ``None`` if nobody asks."""


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
class Samples:
    """What interleaved timing gave."""

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    """Backend to time a call, one sample a round."""
    stretched: dict[str, list[float]] = field(default_factory=dict)
    """Backend to how long each block took from here, over what its own process's clock says."""


def interleave(
    sessions: Mapping[str, Timer],
    chosen: Plan,
    *,
    limit_s: float,
    waits: bool = False,
    part: int | None = None,
    on_round: Callable[[int, int], bool],
    before: Callable[[str, int, int], None] = lambda _name, _round, _calls: None,
    sampled: Mapping[str, Collection[int]] = MappingProxyType({}),
    on_sample: Callable[[str, int], None] = lambda _name, _round: None,
    leaving: Callable[[Mapping[str, list[float]]], Collection[str]] = lambda _samples: (),
) -> Samples:
    """Time every backend in every round.

    Args:
        sessions: backend to the session that it is ready in. Where there are several, the idle ones
            are stopped: a process that only waits disturbs the one that is timed.
        chosen: how much to time.
        limit_s: seconds that the blocks of one backend may take, all together.
        waits: whether the device has finished each call before the next begins.
        part: which of a step's calls is timed, where it has several; default: all, in turn.
        on_round: called with the number of rounds done and of all rounds; returns whether to go on.
        before: called before each block with backend, round and number of calls.
        sampled: backend to the rounds in which the result of its last call is noted.
        on_sample: called with backend and round when one was noted.
        leaving: called after each round with all samples; returns who takes part no more.

    Raises:
        BlockLost: a backend raised, or its process died or hung.
    """
    milliseconds: dict[str, list[float]] = {name: [] for name in sessions}
    stretched: dict[str, list[float]] = {name: [] for name in sessions}
    left_s = dict.fromkeys(sessions, limit_s)
    several = len({id(x) for x in sessions.values()}) > 1
    out: set[str] = set()

    def block(name: str) -> float:
        session, done = sessions[name], len(milliseconds[name])
        request = Block(
            backend=name,
            warmups=chosen.warmups.get(name, WARMUPS),
            calls=chosen.calls[name],
            sample=done in sampled.get(name, ()),
            waits=waits,
            part=part,
        )
        if several:
            session.resume()
        before(name, done, request.warmups + request.calls)
        start = perf_counter()
        timed = _block(session, request, left_s[name], limit_s)
        taken = perf_counter() - start
        left_s[name] -= taken
        if timed.whole_s:
            stretched[name].append(taken / timed.whole_s)
        if request.sample:
            on_sample(name, done)
        if several:
            session.stop()
        return timed.seconds

    for number, taken in enumerate(in_turns(sessions, chosen, block, out), 1):
        for name, value in taken.items():
            milliseconds[name].append(value)
        out.update(leaving(milliseconds))
        if not on_round(number, chosen.rounds):
            break
    return Samples(milliseconds=milliseconds, stretched=stretched)


def _block(session: Timer, request: Block, timeout_s: float, limit_s: float) -> Timed:
    try:
        reply = session.ask(request, timeout_s=max(timeout_s, 0.0))
    except NoReply as error:
        late = f"it was called for longer than {limit_s:.3g} s, all in all"
        reason = late if error.status == "timeout" else error.reason
        raise BlockLost(request.backend, error.status, reason) from error
    assert isinstance(reply, Timed)
    return reply
