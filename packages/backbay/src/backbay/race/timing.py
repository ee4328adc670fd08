"""Times the survivors: all in one process, or each in its own where that one dies.

Who changes what all in a process share is timed in a process of its own, and so is everyone where
a clock does not agree with this process's or eager is not as fast as it was alone.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbay.judge import Piece
from backbay.judge.client import secret
from backbay.race.decide import EAGER
from backbay.race.requests import Call, Hand, Open, Opened, Renew, Reply, Request
from backbay.session import Failure, NoReply, Session
from backbay.timing import measure, rounds, stats
from backbay.workloads.setup import WorkloadSetup

RaceSession = Session[Request, Reply]

_SAMPLES = 3
"""Rounds of each backend in which what it gave while the clock ran is judged."""
_ALONE_ROUNDS = 8
_ALONE_S = 0.5
_MOVED = 1.25
"""Eager alone may be so many times as slow after the others came as before."""
_STRETCHED = 1.5
"""A block may take so many times as long by this process's clock as by its own; three in four
blocks may take longer, as a busy machine lets a reply wait."""
_SLOWED = 5.0
_GRACE_S = 5.0
"""Rounds may take so many times as long as planned, and so much longer, before nobody waits."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    backend_s: float = 600.0
    """One backend's compile and proof, or the reference."""
    timing_s: float = 20.0
    """The timing of all backends of one workload together."""


@dataclass(frozen=True, kw_only=True)
class InputSets:
    """Which sets of inputs rounds have, and what is judged of their results."""

    files: tuple[Path, ...] = ()
    """Of the sets after the workload's own."""
    seeds: tuple[int, ...] = (0,)
    """Of each set, what elements are drawn from; 0 is a secret of the moment."""
    last: Path | None = None
    """The file of a set that nobody saw before timing has ended."""
    sampled: bool = True
    """Whether results can be judged at all: of what was timed there is a truth."""

    def picked(self, inputs: int) -> int:
        """Return what the elements are drawn from that are handed on."""
        return self.seeds[inputs] or secret()


@dataclass(frozen=True)
class Given:
    """What a call gave, in this process's memory: others share the backend's, and its files."""

    piece: Piece
    data: bytes

    @classmethod
    def taken(cls, piece: Piece) -> "Given":
        """Take what a backend handed on, and leave nothing behind.

        Raises:
            OSError: there is nothing.
        """
        path = Path(piece.path)
        data = path.read_bytes()
        path.unlink()
        return cls(piece, data)

    def put_back(self) -> Piece:
        """Write it where the judge finds it."""
        Path(self.piece.path).write_bytes(self.data)
        return self.piece


class _VoidError(Exception):
    """Times are not to be believed; the message says why."""

    def __init__(self, reason: str, backend: str | None = None) -> None:
        super().__init__(reason)
        self.backend = backend
        """Whose times they are, where it is one's alone."""


@dataclass(kw_only=True)
class Timing:
    """The timed part of a race."""

    setup: WorkloadSetup
    digest: str
    """Of the reference's parameters and inputs."""
    open_session: Callable[[], RaceSession]
    limits: Limits
    tell: Callable[[str, str, str], None]
    """Called with backend and text."""
    folder: Path
    """Where what was given is handed on."""
    sets: InputSets = field(default_factory=InputSets)
    reveal: Callable[[], None] = lambda: None
    """Writes the files of all sets but the last."""
    reveal_last: Callable[[], None] = lambda: None

    samples: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds a call, one sample a round."""
    lost: dict[str, tuple[Failure, str]] = field(default_factory=dict)
    """Who had been right and could not be timed, and why."""
    given: dict[str, list[Given]] = field(default_factory=dict)
    """What each gave while the clock ran, and afterwards."""
    notes: list[str] = field(default_factory=list)
    _most_calls: int | None = None

    def run(self, names: Sequence[str], apart: Collection[str] = ()) -> None:
        """Time these backends; eager must be one of them.

        Args:
            names: of the backends.
            apart: those that are not to be in one process with others.
        """
        together = [x for x in names if x not in apart]
        why = self._run_apart(names, together) if apart else self._run_together(together)
        if why is None:
            return
        self._forget()
        self.notes.append(f"{why}: each was timed in a process of its own, the idle ones stopped")
        why = self._run_apart(names, ())
        if why is not None:
            self._forget()
            self.notes.append(f"the times can't be believed: {why}")

    def _run_together(self, names: Sequence[str]) -> str | None:
        """Time them in one process; return why their times can't be used, if so."""
        try:
            with self.open_session() as session:
                step_s = self._ready(session, [EAGER])
                before = self._alone(session, step_s)
                step_s |= self._ready(session, [x for x in names if x != EAGER])
                self._interleave(dict.fromkeys(step_s, session), step_s)
                self._check_eager(session, before, self._alone(session, step_s))
                self._call_afterwards(dict.fromkeys(step_s, session))
        except (NoReply, measure.BlockLost) as failure:
            return f"timing all backends in one process failed ({failure})"
        except _VoidError as void:
            return str(void)
        return None

    def _run_apart(self, names: Sequence[str], together: Collection[str]) -> str | None:
        """Time some in one process, and each other in its own; return why that can't be used."""
        left = [name for name in names if name not in self.lost]
        with contextlib.ExitStack() as stack:
            sessions, step_s = self._open_apart(left, together, stack)
            while EAGER in sessions and not self.samples:  # without eager nobody can be compared
                if len(set(map(id, sessions.values()))) == 1:
                    sessions[EAGER].resume()  # alone it is not stopped between blocks
                try:
                    self._interleave(sessions, {name: step_s[name] for name in sessions})
                    self._call_afterwards(sessions)
                except measure.BlockLost as failure:  # the others are ready as they are
                    if failure.backend in together:
                        return f"{failure.backend} was lost"
                    self._lose(sessions, failure.backend, failure.status, failure.reason)
                except _VoidError as void:
                    if void.backend in {None, EAGER}:
                        return str(void)
                    self._lose(sessions, str(void.backend), "failed", str(void))
        return None

    def _lose(
        self, sessions: dict[str, RaceSession], backend: str, status: Failure, reason: str
    ) -> None:
        self._forget()
        self.lost[backend] = (status, reason)
        sessions.pop(backend).stop()

    def _forget(self) -> None:
        self.samples = {}
        self.given = {}

    def _open_apart(
        self, names: Sequence[str], together: Collection[str], stack: contextlib.ExitStack
    ) -> tuple[dict[str, RaceSession], dict[str, float]]:
        sessions: dict[str, RaceSession] = {}
        step_s: dict[str, float] = {}
        groups = [[x for x in names if x in together], *([x] for x in names if x not in together)]
        for group in filter(None, groups):
            session = stack.enter_context(self.open_session())
            try:
                ready = self._ready(session, group)
            except NoReply as failure:
                self.lost |= dict.fromkeys(group, (failure.status, failure.reason))
                continue
            step_s |= ready
            session.stop()
            sessions |= dict.fromkeys(ready, session)
        return {name: sessions[name] for name in names if name in step_s}, step_s

    def _ready(self, session: RaceSession, names: Sequence[str]) -> dict[str, float]:
        """Compile these, and return the time of one step of each that got ready."""
        self.tell(", ".join(names), "compiling again, from a warm cache", "")
        self.reveal()
        request = Open(
            setup=self.setup,
            backends=tuple(names),
            digest=self.digest,
            inputs=tuple(map(str, self.sets.files)),
        )
        reply = session.ask(request, timeout_s=self.limits.backend_s * max(1, len(names)))
        assert isinstance(reply, Opened)
        self._most_calls = reply.most_calls
        self.lost |= {name: ("failed", why) for name, why in reply.failed.items()}
        return dict(reply.step_s)

    def _alone(self, session: RaceSession, step_s: Mapping[str, float]) -> list[float]:
        """Return eager's times while nobody else runs; none if eager did not get ready."""
        if EAGER not in step_s:
            return []
        plan = rounds.plan({EAGER: step_s[EAGER]}, _ALONE_S, most_calls=self._most_calls)
        few = rounds.Plan(rounds=_ALONE_ROUNDS, calls=plan.calls)
        alone = measure.interleave(
            {EAGER: session},
            few,
            timeout_s=self.limits.backend_s,
            on_round=lambda _done, _of: None,
            before=lambda name, number, calls: self._renew(session, name, number, calls),
        )
        return alone.milliseconds[EAGER]

    def _check_eager(self, session: RaceSession, before: list[float], after: list[float]) -> None:
        """Check that eager is as fast as it was before others were loaded.

        Raises:
            _VoidError: it is not.
        """
        if not before or not _is_slower(before, after):
            return
        session.stop()
        with self.open_session() as fresh:  # or is the machine slower than it was?
            elsewhere = self._alone(fresh, self._ready(fresh, [EAGER]))
        session.resume()
        if _is_slower(elsewhere, after):
            was, now = stats.median(elsewhere)[0], stats.median(after)[0]
            raise _VoidError(
                f"eager alone takes {was:.3g} ms a call in a process of its own, and {now:.3g} ms "
                "where the others are loaded: one of them changed it"
            )

    def _interleave(self, sessions: Mapping[str, RaceSession], step_s: Mapping[str, float]) -> None:
        if EAGER not in sessions:  # nobody to compare with
            return
        plan = rounds.plan(step_s, self.limits.timing_s, most_calls=self._most_calls)
        sets = len(self.sets.files) + 1
        planned_s = sum((plan.calls[x] + rounds.WARMUPS) * step_s[x] for x in sessions)
        taken = measure.interleave(
            sessions,
            plan,
            timeout_s=self.limits.backend_s,
            on_round=self._watched_rounds(sessions, planned_s, time.monotonic()),
            before=lambda name, number, calls: self._renew(sessions[name], name, number, calls),
            sampled=self._sampled(sessions, plan.rounds),
            on_sample=lambda name, number: self._hand(
                sessions[name], name, number % sets, timed=True
            ),
        )
        self._check_clocks(sessions, taken.stretched)
        self.samples = taken.milliseconds

    def _watched_rounds(
        self, sessions: Mapping[str, RaceSession], planned_s: float, start: float
    ) -> Callable[[int, int], None]:
        """Return what is told of each round; it does not wait for those that one of them slows.

        Apart, nobody is slowed by another.
        """
        everyone, together = ", ".join(sessions), len(set(map(id, sessions.values()))) == 1

        def told(done: int, of: int) -> None:
            self.tell(everyone, "timing", f"round {done} of {of}")
            taken = time.monotonic() - start
            if together and taken > _GRACE_S + _SLOWED * done * planned_s:
                raise _VoidError(
                    f"{done} of {of} rounds took {taken:.0f} s, and {done * planned_s:.1f} s were "
                    "planned: one of the backends slows the others down"
                )

        return told

    def _sampled(self, names: Collection[str], number: int) -> dict[str, Collection[int]]:
        if not self.sets.sampled:
            return {}
        draw = secrets.SystemRandom()  # nobody who is timed can know when it is looked at
        return {x: draw.sample(range(number), min(_SAMPLES, number)) for x in names if x != EAGER}

    def _renew(self, session: RaceSession, name: str, number: int, calls: int) -> None:
        inputs = number % (len(self.sets.files) + 1)
        self._ask(session, name, Renew(inputs=inputs, calls=calls))

    def _check_clocks(
        self, sessions: Mapping[str, RaceSession], stretched: Mapping[str, Sequence[float]]
    ) -> None:
        """Check that what processes say of their times fits what passed here.

        Raises:
            _VoidError: it does not.
        """
        for name, of_blocks in stretched.items():
            quarter = sorted(of_blocks)[len(of_blocks) // 4] if of_blocks else 1.0
            if quarter > _STRETCHED:
                alone = sum(x is sessions[name] for x in sessions.values()) == 1
                raise _VoidError(
                    f"the blocks of {name} took {quarter:.3g} times as long here as their "
                    "process's clock says",
                    name if alone else None,
                )

    def _call_afterwards(self, sessions: Mapping[str, RaceSession]) -> None:
        """Call once more, with inputs that nobody has seen: what was timed is what is right."""
        if not self.sets.sampled or self.sets.last is None:
            return
        self.reveal_last()
        several = len(set(map(id, sessions.values()))) > 1
        for name, session in sessions.items():
            if name == EAGER:
                continue
            if several:
                session.resume()
            self._ask(session, name, Call(backend=name, inputs=str(self.sets.last)))
            self._hand(session, name, len(self.sets.seeds) - 1, timed=False)
            if several:
                session.stop()

    def _hand(self, session: RaceSession, name: str, inputs: int, *, timed: bool) -> None:
        picked, path = self.sets.picked(inputs), self.folder / f"timed-{secret():x}"
        self._ask(session, name, Hand(path=str(path), picked=picked))
        what = "while the clock ran" if timed else "after timing, with inputs that are new"
        piece = Piece(path=str(path), inputs=inputs, what=what, picked=picked, timed=timed)
        try:
            self.given.setdefault(name, []).append(Given.taken(piece))
        except OSError as error:
            raise measure.BlockLost(name, "failed", f"it handed nothing on: {error}") from error

    def _ask(self, session: RaceSession, name: str, request: Request) -> Reply:
        try:
            return session.ask(request, timeout_s=self.limits.backend_s)
        except NoReply as failure:
            raise measure.BlockLost(name, failure.status, failure.reason) from failure


def _is_slower(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether times are longer than others, by more than their noise."""
    if not before or not after:
        return False
    (was, was_ci), (now, now_ci) = stats.median(before), stats.median(after)
    return was_ci[1] < now_ci[0] and now > _MOVED * was
