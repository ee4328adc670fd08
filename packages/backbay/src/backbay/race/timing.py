"""Times the survivors: all in one process, or each in its own where that one dies."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backbay.race.decide import EAGER
from backbay.race.requests import Open, Opened, Reply, Request
from backbay.session import Failure, NoReply, Session
from backbay.timing import measure, rounds
from backbay.workloads.setup import WorkloadSetup

RaceSession = Session[Request, Reply]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    backend_s: float = 600.0
    """One backend's compile and proof, or the reference."""
    timing_s: float = 20.0
    """The timing of all backends of one workload together."""


@dataclass(kw_only=True)
class Timing:
    """The timed part of a race."""

    setup: WorkloadSetup
    digest: str
    """Of the reference's parameters and inputs."""
    open_session: Callable[[], RaceSession]
    limits: Limits
    tell: Callable[[str, str], None]
    """Called with backend and text."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds a call, one sample a round."""
    lost: dict[str, tuple[Failure, str]] = field(default_factory=dict)
    """Who had been right and could not be timed, and why."""
    notes: list[str] = field(default_factory=list)

    def run(self, names: Sequence[str]) -> None:
        """Time these backends; eager must be one of them."""
        try:
            with self.open_session() as session:
                step_s = self._ready(session, names)
                self._interleave(dict.fromkeys(step_s, session), step_s)
        except (NoReply, measure.BlockLost) as failure:
            self.notes.append(
                f"timing all backends in one process failed ({failure}): each was timed in a "
                "process of its own, the idle ones stopped"
            )
            self._run_apart(names)

    def _run_apart(self, names: Sequence[str]) -> None:
        left = [name for name in names if name not in self.lost]
        with contextlib.ExitStack() as stack:
            sessions, step_s = self._open_apart(left, stack)
            while EAGER in sessions and not self.samples:  # without eager nobody can be compared
                if len(sessions) == 1:
                    sessions[EAGER].resume()  # alone it is not stopped between blocks
                try:
                    self._interleave(sessions, {name: step_s[name] for name in sessions})
                except measure.BlockLost as failure:  # the others are ready as they are
                    self.lost[failure.backend] = (failure.status, failure.reason)
                    sessions.pop(failure.backend).stop()

    def _open_apart(
        self, names: Sequence[str], stack: contextlib.ExitStack
    ) -> tuple[dict[str, RaceSession], dict[str, float]]:
        sessions: dict[str, RaceSession] = {}
        step_s: dict[str, float] = {}
        for name in names:
            session = stack.enter_context(self.open_session())
            try:
                step_s |= self._ready(session, [name])
            except NoReply as failure:
                self.lost[name] = (failure.status, failure.reason)
                continue
            session.stop()
            sessions[name] = session
        return {name: sessions[name] for name in step_s}, step_s

    def _ready(self, session: RaceSession, names: Sequence[str]) -> Mapping[str, float]:
        """Compile these, and return the time of one step of each that got ready."""
        self.tell(", ".join(names), "compiling again, from a warm cache")
        request = Open(setup=self.setup, backends=tuple(names), digest=self.digest)
        reply = session.ask(request, timeout_s=self.limits.backend_s * len(names))
        assert isinstance(reply, Opened)
        self.lost |= {name: ("failed", why) for name, why in reply.failed.items()}
        return reply.step_s

    def _interleave(self, sessions: Mapping[str, RaceSession], step_s: Mapping[str, float]) -> None:
        if EAGER not in sessions:  # nobody to compare with
            return
        everyone = ", ".join(sessions)
        self.samples = measure.interleave(
            sessions,
            rounds.plan(step_s, self.limits.timing_s),
            timeout_s=self.limits.backend_s,
            on_round=lambda done, of: self.tell(everyone, f"timing, round {done} of {of}"),
        )
