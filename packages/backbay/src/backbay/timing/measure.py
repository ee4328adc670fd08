"""Interleaved timing of backends in sessions: `rounds`, asked of child processes."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from backbay.session import Failure, NoReply
from backbay.timing.rounds import WARMUPS, Plan, in_turns


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """The request to warm one backend up and to time a block of its calls."""

    backend: str
    warmups: int
    calls: int


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


def interleave(
    sessions: Mapping[str, Timer],
    chosen: Plan,
    *,
    timeout_s: float,
    on_round: Callable[[int, int], None],
) -> dict[str, list[float]]:
    """Time every backend in every round.

    Args:
        sessions: backend to the session that it is ready in. Where there are several, the idle ones
            are stopped: a process that only waits disturbs the one that is timed.
        chosen: how much to time.
        timeout_s: seconds that one block may take.
        on_round: called with the number of rounds done and of all rounds.

    Returns:
        Backend to milliseconds a call, one sample a round.

    Raises:
        BlockLost: a backend raised, or its process died or hung.
    """
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    several = len({id(x) for x in sessions.values()}) > 1

    def block(name: str) -> float:
        return _block(sessions[name], name, chosen, several=several, timeout_s=timeout_s)

    for number, taken in enumerate(in_turns(sessions, chosen, block), 1):
        for name, milliseconds in taken.items():
            samples[name].append(milliseconds)
        on_round(number, chosen.rounds)
    return samples


def _block(session: Timer, name: str, chosen: Plan, *, several: bool, timeout_s: float) -> float:
    request = Block(backend=name, warmups=WARMUPS, calls=chosen.calls[name])
    if several:
        session.resume()
    try:
        reply = session.ask(request, timeout_s=timeout_s)
    except NoReply as error:
        raise BlockLost(name, error.status, error.reason) from error
    if several:
        session.stop()
    assert isinstance(reply, Timed)
    return reply.seconds
