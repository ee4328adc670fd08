"""Times the survivors: all that leave each other alone take turns in one process.

Whoever disturbs the others is timed by itself, in a process of its own beside eager in another;
then the others are timed together again, in a new process, as if it had not taken part: a process
whose times are void, or that died, has nothing in it that is used. So the numbers of a backend do
not depend on who else was raced.
"""

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbay.judge import Piece
from backbay.judge.client import secret
from backbay.race.contest import Contest
from backbay.race.costs import Costs
from backbay.race.estimate import clock
from backbay.race.given import Given, InputSets
from backbay.race.objective import Objective
from backbay.race.record import EAGER
from backbay.race.requests import (
    ArmSetup,
    Call,
    Hand,
    Open,
    Opened,
    Renew,
    Reply,
    Request,
    Watch,
    Watched,
)
from backbay.race.times import Times
from backbay.race.turns import Turns
from backbay.reporting.machine import Load
from backbay.session import Failure, NoReply, Session
from backbay.timing import measure, rounds, stats
from backbay.timing.gpu_work import GpuWork
from backbay.workloads.setup import WorkloadSetup

RaceSession = Session[Request, Reply]

_SAMPLES = 3
"""Rounds of each arm, of the fewest that there are, in which what it gave while the clock ran is
judged; and one of those that follow before anything is decided."""
_STRETCH = 16
"""...and one of each so many after these."""
_ALONE_ROUNDS, _FEW_ALONE = 8, 5
_LONG_S = 0.1
"""Of a step, from where on few rounds are enough: it scatters less, and more take too long."""
_ALONE_S = 0.5
_WHOLE_SHARE = 0.6
"""Of the time, for a step that calls the model several times; the rest is for its calls alone."""
_MOVED = 1.25
"""Eager alone may be so many times as slow after the others came as before."""
_STRETCHED = 1.5
"""A block may take so many times as long by this process's clock as by its own; three in four
blocks may take longer, as a busy machine lets a reply wait."""
_SLOWED = 5.0
_GRACE_S = 5.0
"""Rounds may take so many times as long as planned, and so much longer, before nobody waits."""
_ATTEMPTS = 3
"""To time together; before the last, each is tried with eager alone."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    backend_s: float = 600.0
    """One backend's compile and proof, or the reference; and its own part of the timing."""
    timing_s: float = 20.0
    """What is timed of all backends of one workload together."""
    at_once: int | None = None
    """Arms that are compiled and proven at the same time; ``None``: as cores and memory allow."""
    whole_s: float = 1800.0
    """The timing of one workload, with compiling again and all that has to be repeated. Whoever has
    no times by then gets none."""


class _VoidError(Exception):
    """Times are not to be believed; the message says why."""

    def __init__(self, reason: str, backend: str | None = None) -> None:
        super().__init__(reason)
        self.backend = backend
        """Whose fault it is, where that is known."""
        self.status: Failure = "failed"
        self.reason = reason


_TROUBLE = (measure.BlockLost, _VoidError)
_Trouble = measure.BlockLost | _VoidError


class _OutOfTimeError(Exception):
    """The timing as a whole has taken too long."""


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
    arms: Mapping[str, ArmSetup]
    """Of those who are timed, by name."""
    reveal: Callable[[], None] = lambda: None
    """Writes the files of all sets but the last."""
    reveal_last: Callable[[], None] = lambda: None

    turns: Turns = field(default_factory=Turns)
    """Who else works on the device waits while the clock runs, and not while arms compile."""

    objective: Objective = field(default_factory=Objective)
    """What is to be decided by."""

    calls: Sequence[str] = ()
    """Of a step that calls the model several times, what the calls differ by."""
    parts: list[dict[str, list[float]]] = field(default_factory=list)
    """Of each of these calls, as `groups` has it; only of those who took turns in one process."""

    cache_of: Callable[[str], str] = lambda _: ""
    """Returns the cache folder that an arm was compiled with before."""
    cost_of: Callable[[Times], Costs] = lambda times: times
    """Returns what is compared of times: who can't win any more by it is not timed further."""

    busy: float = 0.0
    """Cores that other processes used meanwhile."""
    left_early: dict[str, str] = field(default_factory=dict)
    """Who was not timed to the end, in words."""
    compile_s: dict[str, float] = field(default_factory=dict)
    """How long compiling from a warm cache took, where that counts."""
    groups: list[dict[str, list[float]]] = field(default_factory=list)
    """Milliseconds a call, one sample a round, of those who took turns; eager is in each."""
    lost: dict[str, tuple[Failure, str]] = field(default_factory=dict)
    """Who had been right and could not be timed, and why."""
    apart: dict[str, str] = field(default_factory=dict)
    """Who was timed by itself beside eager, and why."""
    given: dict[str, list[Given]] = field(default_factory=dict)
    """What each gave while the clock ran, and afterwards."""
    gpu_work: dict[str, GpuWork] = field(default_factory=dict)
    """What a GPU does during a step of each."""
    notes: list[str] = field(default_factory=list)
    _most_calls: int | None = None
    _deadline: float = 0.0
    _renewing_s: float = 0.0
    """What inputs took to be renewed, which nobody plans."""

    def run(self, names: Sequence[str], apart: Mapping[str, str] | None = None) -> None:
        """Time these backends; eager must be one of them.

        Args:
            names: of the backends.
            apart: those that are not to be in one process with others, and why.
        """
        self._deadline = time.monotonic() + self.limits.whole_s
        self.apart = dict(apart or {})
        try:
            self._time_together([x for x in names if x not in self.apart])
            self._time_apart()
        except _OutOfTimeError:
            timed = {name for group in self.groups for name in group}
            reason = f"the timing of all together took longer than {self.limits.whole_s:.3g} s"
            for name in names:
                if name not in timed:
                    self.lost.setdefault(name, ("timeout", reason))

    def _time_together(self, names: Sequence[str]) -> None:
        """Time those that leave each other alone; note who is to be timed apart."""
        left, last = list(names), ""
        for attempt in range(_ATTEMPTS):
            try:
                self._take_turns(left)
            except _TROUBLE as trouble:
                last, backend = str(trouble), trouble.backend
                known = backend is not None and backend != EAGER
                if known:
                    self._note(trouble, str(backend))
            else:
                return
            if attempt or not known:
                known |= self._note_disturbing(self._still_together(left[1:]))
            left = self._still_together(left)
            if not known or EAGER not in left:
                break
        if EAGER not in self.lost and len(left) > 1:
            self.notes.append(f"{last}: each was timed in a process of its own, beside eager")
            self.apart |= dict.fromkeys(left[1:], f"timing them together failed: {last}")
        elif EAGER not in self.lost:
            self.lost[EAGER] = ("failed", last)

    def _still_together(self, names: Sequence[str]) -> list[str]:
        return [x for x in names if x not in self.apart and x not in self.lost]

    def _note(self, trouble: _Trouble, backend: str) -> None:
        """Note whose fault something was: it is timed apart, or not at all if it took too long."""
        if trouble.status == "timeout":
            self.lost[backend] = (trouble.status, trouble.reason)
        else:
            self.apart[backend] = str(trouble)

    def _note_disturbing(self, names: Sequence[str]) -> bool:
        """Note who can't be in one process even with eager alone; return whether anybody can't."""
        found = False
        for name in names:
            try:
                self._take_turns([EAGER, name], rehearsal=True)
            except _TROUBLE as trouble:
                self._note(trouble, name)
                found = True
        return found

    def _take_turns(self, names: Sequence[str], *, rehearsal: bool = False) -> None:
        """Time these in one process, and check that none of them disturbs the others.

        Args:
            names: eager, and who else.
            rehearsal: whether it is short, and the times are thrown away.

        Raises:
            BlockLost, _VoidError: the times can't be used.
        """
        with self.open_session() as session:
            with self._preparing():
                step_s = self._ready(session, [EAGER])
            alone = _ALONE_ROUNDS if step_s[EAGER] < _LONG_S else _FEW_ALONE
            with self._turn(self.turns.timing()):
                before = self._alone(session, step_s, alone)
            with self._preparing():
                step_s |= self._ready(session, names[1:])
            sessions = dict.fromkeys(step_s, session)
            budget_s = _ALONE_S if rehearsal else self.limits.timing_s
            if self.calls:
                budget_s *= _WHOLE_SHARE
            with self._turn(self.turns.timing()):
                taken = self._interleave(sessions, step_s, budget_s, judged=not rehearsal)
                parts = [] if rehearsal else self._part_by_part(sessions, step_s)
                self._check_eager(session, step_s, before)
                if not rehearsal:
                    self._keep(taken, sessions)
                    self.parts = parts

    def _preparing(self) -> contextlib.AbstractContextManager[None]:
        """Wait for a turn to compile; where that is measured, no other race works meanwhile."""
        warm = self.objective.warm
        return self._turn(self.turns.timing() if warm else self.turns.working())

    @contextlib.contextmanager
    def _turn(self, turn: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Wait for a turn; to wait takes no time from anybody."""
        start = time.monotonic()
        with turn:
            self._deadline += time.monotonic() - start
            yield

    def _part_by_part(
        self, sessions: Mapping[str, RaceSession], step_s: Mapping[str, float]
    ) -> list[dict[str, list[float]]]:
        """Time each of a step's calls by itself."""
        if not self.calls:
            return []
        budget_s = self.limits.timing_s * (1 - _WHOLE_SHARE) / len(self.calls)
        each_s = {name: x / len(self.calls) for name, x in step_s.items()}
        plan = rounds.plan(each_s, budget_s, most_calls=self._most_calls)

        def timed(number: int, call: str) -> dict[str, list[float]]:
            begun = time.monotonic()

            def goes_on(done: int, of: int) -> bool:
                self.tell(", ".join(sessions), f"timing {call}", f"round {done} of {of}")
                self._patience_s()
                return time.monotonic() - begun < budget_s or done < rounds.LEAST_ROUNDS

            taken = measure.interleave(
                sessions,
                plan,
                limit_s=self._patience_s(),
                waits=self.objective.kind == "latency",
                part=number,
                on_round=goes_on,
                before=lambda name, number, calls: self._renew(sessions[name], name, number, calls),
            )
            return taken.milliseconds

        return [timed(number, call) for number, call in enumerate(self.calls)]

    def _time_apart(self) -> None:
        """Time each of those who disturb others in a process of its own, and eager in another."""
        names = [name for name in self.apart if name not in self.lost]
        for name in names:
            with self.open_session() as eager, self.open_session() as other:
                try:
                    with self._preparing():
                        step_s = self._ready(eager, [EAGER])
                        eager.stop()
                        step_s |= self._ready(other, [name])
                    if name in self.lost:
                        continue
                    other.stop()
                    sessions = {EAGER: eager, name: other}
                    budget_s = self.limits.timing_s / len(names)
                    with self._turn(self.turns.timing()):
                        taken = self._interleave(sessions, step_s, budget_s)
                        self._keep(taken, sessions)
                except _TROUBLE as trouble:
                    self.lost[name] = (trouble.status, trouble.reason)

    def _keep(self, taken: "_Taken", sessions: Mapping[str, RaceSession]) -> None:
        afterwards = self._called_afterwards(sessions)
        self.groups.append(taken.samples)
        for name, given in [*taken.given.items(), *afterwards.items()]:
            self.given.setdefault(name, []).extend(given)
        self._watch(sessions)

    def _watch(self, sessions: Mapping[str, RaceSession]) -> None:
        """Look at what a GPU does, when all that counts is known: a profiler may break anything."""
        if not self.setup.device.startswith("cuda"):
            return
        several = len(set(map(id, sessions.values()))) > 1
        for name, session in sessions.items():
            if several:
                session.resume()
            with contextlib.suppress(NoReply):
                watched = session.ask(Watch(arm=name), timeout_s=self._patience_s())
                assert isinstance(watched, Watched)
                if watched.work is not None:
                    self.gpu_work[name] = watched.work
            if several:
                session.stop()

    def _ready(self, session: RaceSession, names: Sequence[str]) -> dict[str, float]:
        """Compile these, and return the time of one step of each that got ready."""
        step_s: dict[str, float] = {}
        for name in names:
            again = "loading again" if name == EAGER else "compiling again, from a warm cache"
            self.tell(name, again, "")
            self.reveal()
            request = Open(
                setup=self.setup,
                arms=(self.arms[name],),
                cache="" if name == EAGER else self.cache_of(name),
                warm=self.objective.warm,
                digest=self.digest,
                inputs=tuple(map(str, self.sets.files)),
            )
            reply = self._ask(session, name, request)
            assert isinstance(reply, Opened)
            self._most_calls = reply.most_calls
            step_s |= reply.step_s
            self.compile_s |= reply.compile_s
            if name in reply.failed and name == EAGER:
                self.lost[EAGER] = ("failed", reply.failed[EAGER])
                raise measure.BlockLost(EAGER, "failed", reply.failed[EAGER])
            self.lost |= {x: ("failed", why) for x, why in reply.failed.items()}
        return step_s

    def _alone(self, session: RaceSession, step_s: Mapping[str, float], number: int) -> list[float]:
        """Return eager's times while nobody else runs, in so many rounds."""
        plan = rounds.plan({EAGER: step_s[EAGER]}, _ALONE_S, most_calls=self._most_calls)
        taken = measure.interleave(
            {EAGER: session},
            rounds.Plan(rounds=number, calls=plan.calls, warmups=plan.warmups),
            limit_s=self._patience_s(),
            waits=self.objective.kind == "latency",
            on_round=lambda _done, _of: True,
            before=lambda name, number, calls: self._renew(session, name, number, calls),
        )
        return taken.milliseconds[EAGER]

    def _check_eager(
        self, session: RaceSession, step_s: Mapping[str, float], before: Sequence[float]
    ) -> None:
        """Check that eager is as fast as it was before others were loaded.

        Raises:
            _VoidError: it is not, and the machine is: in a new process it is faster.
        """
        if not _is_slower(before, self._alone(session, step_s, len(before))):
            return
        here, elsewhere = list[float](), list[float]()
        with self.open_session() as fresh:
            session.stop()
            others = self._ready(fresh, [EAGER])
            for _ in before:
                fresh.resume()
                elsewhere += self._alone(fresh, others, 1)
                fresh.stop()
                session.resume()
                here += self._alone(session, step_s, 1)
                session.stop()
        session.resume()
        value, (low, _) = stats.ratio(here, elsewhere)
        if value > _MOVED and low > 1.0:
            was, now = stats.median(elsewhere)[0], stats.median(here)[0]
            raise _VoidError(
                f"eager alone takes {was:.3g} ms a call in a process of its own, and {now:.3g} ms "
                "where the others are loaded: one of them changed it"
            )

    def _interleave(
        self,
        sessions: Mapping[str, RaceSession],
        step_s: Mapping[str, float],
        budget_s: float,
        *,
        judged: bool = True,
    ) -> "_Taken":
        plan = rounds.plan(
            step_s, budget_s, most_calls=self._most_calls, fewest=rounds.LEAST_ROUNDS
        )
        contest = Contest(cost_of=self.cost_of, fewest=min(plan.rounds, rounds.FEWEST_ROUNDS))
        load = Load()
        most_s, sets = self.limits.backend_s, len(self.sets.files) + 1
        block_s = {x: plan.block_calls(x) * step_s[x] for x in sessions}
        for name, needed_s in block_s.items():
            if plan.rounds * needed_s > most_s:
                whole_s = plan.rounds * needed_s
                why = f"to time it takes {whole_s:.3g} s, and it has {most_s:.3g} s"
                raise measure.BlockLost(name, "timeout", why)
        given: dict[str, list[Given]] = {}
        taken = measure.interleave(
            sessions,
            plan,
            limit_s=self._patience_s(),
            waits=self.objective.kind == "latency",
            on_round=self._on_round(sessions, sum(block_s.values()), budget_s, contest),
            before=lambda name, number, calls: self._renew(sessions[name], name, number, calls),
            sampled=self._sampled(sessions, contest.fewest, plan.rounds) if judged else {},
            on_sample=lambda name, number: given.setdefault(name, []).append(
                self._handed(sessions[name], name, number % sets, timed=True)
            ),
            leaving=contest.look if judged else lambda _samples: (),
        )
        self.busy = max(self.busy, load.others())
        of = max(map(len, taken.milliseconds.values()))
        for name in contest.out:
            done = len(taken.milliseconds[name])
            if done < of:
                self.left_early[name] = f"timed in {done} rounds of {of}: it could not win any more"
        self._check_clocks(sessions, taken.stretched)
        return _Taken(taken.milliseconds, given)

    def _on_round(
        self,
        sessions: Mapping[str, RaceSession],
        planned_s: float,
        budget_s: float,
        contest: Contest,
    ) -> Callable[[int, int], bool]:
        """Return what is told of each round; it does not wait for those that one of them slows.

        Apart, nobody is slowed by another.
        """
        everyone = ", ".join(sessions)
        together = len(sessions) > 1 and len(set(map(id, sessions.values()))) == 1
        begun = time.monotonic()
        start = begun - self._renewing_s

        def told(done: int, of: int) -> bool:
            spent_s = time.monotonic() - begun
            left_s = min((of - done) * spent_s / done, max(budget_s - spent_s, 0.0))
            self.tell(everyone, "timing", f"round {done} of {of}, about {clock(left_s)} left")
            taken = time.monotonic() - self._renewing_s - start
            if together and taken > _GRACE_S + _SLOWED * done * planned_s:
                raise _VoidError(
                    f"{done} of {of} rounds took {taken:.0f} s, and {done * planned_s:.1f} s were "
                    "planned: one of the backends slows the others down"
                )
            if done < contest.fewest:
                self._patience_s()
            if (spent_s > budget_s and done >= rounds.LEAST_ROUNDS) or contest.clear:
                return False
            late = time.monotonic() > self._deadline and done < of
            if late:
                self.notes.append(f"timing was cut off after {done} of {of} rounds")
            return not late

        return told

    def _patience_s(self) -> float:
        """Return how long a backend may take now.

        Raises:
            _OutOfTimeError: nobody has any time left.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise _OutOfTimeError
        return min(self.limits.backend_s, left_s)

    def _sampled(
        self, names: Collection[str], fewest: int, number: int
    ) -> dict[str, Collection[int]]:
        """Return the rounds in which what each gives is judged.

        Some are of those that a device takes however slow it has become; later ones may never come.
        """
        if not self.sets.sampled:
            return {}
        draw = secrets.SystemRandom()  # nobody who is timed can know when it is looked at
        sets = len(self.sets.files) + 1
        sure = rounds.LEAST_ROUNDS
        bounds = sorted({sure, *range(fewest, number, _STRETCH), number})
        later = [range(*x) for x in itertools.pairwise(bounds)]

        def drawn() -> list[int]:
            order = draw.sample(range(sure), sure)
            # A set's second round comes after the first of all: of one set alone, a result may be
            # known from before.
            before = {x: sum(y % sets == x % sets for y in order[:i]) for i, x in enumerate(order)}
            first = sorted(order, key=before.__getitem__)[:_SAMPLES]
            return [*first, *(draw.choice(x) for x in later)]

        return {x: drawn() for x in names if x != EAGER}

    def _renew(self, session: RaceSession, name: str, number: int, calls: int) -> None:
        inputs, start = number % (len(self.sets.files) + 1), time.monotonic()
        self._ask(session, name, Renew(inputs=inputs, calls=calls))
        self._renewing_s += time.monotonic() - start

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

    def _called_afterwards(self, sessions: Mapping[str, RaceSession]) -> dict[str, list[Given]]:
        """Call once more, with inputs that nobody has seen: what was timed is what is right."""
        if not self.sets.afterwards or self.sets.last is None:
            return {}
        self.reveal_last()
        given = {}
        several = len(set(map(id, sessions.values()))) > 1
        for name, session in sessions.items():
            if name == EAGER:
                continue
            if several:
                session.resume()
            self._ask(session, name, Call(arm=name, inputs=str(self.sets.last)))
            given[name] = [self._handed(session, name, len(self.sets.seeds) - 1, timed=False)]
            if several:
                session.stop()
        return given

    def _handed(self, session: RaceSession, name: str, inputs: int, *, timed: bool) -> Given:
        picked, path = self.sets.picked(inputs), self.folder / f"timed-{secret():x}"
        self._ask(session, name, Hand(path=str(path), picked=picked))
        what = "while the clock ran" if timed else "after timing, with inputs that are new"
        piece = Piece(path=str(path), inputs=inputs, what=what, picked=picked, timed=timed)
        try:
            return Given.taken(piece)
        except OSError as error:
            raise measure.BlockLost(name, "failed", f"it handed nothing on: {error}") from error

    def _ask(self, session: RaceSession, name: str, request: Request) -> Reply:
        try:
            return session.ask(request, timeout_s=self._patience_s())
        except NoReply as failure:
            raise measure.BlockLost(name, failure.status, failure.reason) from failure


@dataclass(frozen=True)
class _Taken:
    """What came of taking turns."""

    samples: dict[str, list[float]]
    given: dict[str, list[Given]]


def _is_slower(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether times are longer than others, by more than their noise."""
    (was, was_ci), (now, now_ci) = stats.median(before), stats.median(after)
    return was_ci[1] < now_ci[0] and now > _MOVED * was
