"""The trials of one workload: each arm in a process of its own, several side by side."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backbay.judge import Judge, Judged, Piece, Prepared
from backbay.judge.calls import pieces
from backbay.judge.client import secret
from backbay.race.caches import Caches
from backbay.race.estimate import Estimate
from backbay.race.field import Entrant
from backbay.race.given import InputSets
from backbay.race.record import AS_IT_IS, Measured, Trying, VerdictRecord
from backbay.race.requests import (
    ArmSetup,
    Call,
    CallRow,
    Capture,
    Captured,
    Finish,
    Finished,
    Hand,
    Proving,
    Reply,
    Request,
    Try,
)
from backbay.race.timing import Limits
from backbay.session import NoReply, Session, end_until_done
from backbay.workloads.setup import WorkloadSetup

OpenSession = Callable[[Mapping[str, str]], Session[Request, Reply]]
"""Returns a session whose process has these environment variables."""


@dataclass(kw_only=True)
class Trials:
    """Arms that are compiled and proven."""

    setup: WorkloadSetup
    arms: Mapping[str, ArmSetup]
    judge: Judge
    prepared: Prepared
    proving: Proving
    sets: InputSets
    caches: Caches
    folder: Path
    """Where what calls gave is handed on."""
    open_session: OpenSession
    limits: Limits
    at_once: int
    """How many arms are tried at the same time."""
    tell: Callable[[str, str, str], None]
    """Called with arm, what is going on, and how far it is."""
    done: Callable[[str, Trying], None]
    """Called with each arm and how it did."""
    capture: bool = False
    """Whether to find out which graphs backends are handed."""

    disturbing: dict[str, str] = field(default_factory=dict)
    """Who has changed what all in a process share, and what that was."""
    captured: Captured | None = None
    """The graphs that backends are handed."""
    _asking: threading.Lock = field(default_factory=threading.Lock)
    """Held while an arm's process finds the graphs."""
    _sessions: set[Session[Request, Reply]] = field(default_factory=set)

    def run(self, entrants: Sequence[Entrant]) -> None:
        """Try these.

        Raises:
            KeyboardInterrupt: the processes that were running are gone.
        """
        estimate = Estimate(len(entrants), self.at_once, self.limits.timing_s)
        beside = min(self.at_once, len(entrants)) - 1
        if beside < 1:
            for entrant in entrants:
                self._tried(entrant, estimate, beside=0)
            return
        with ThreadPoolExecutor(self.at_once) as pool:
            trials = [pool.submit(self._tried, x, estimate, beside=beside) for x in entrants]
            try:
                for trial in as_completed(trials):
                    trial.result()
            except BaseException:
                for trial in trials:
                    trial.cancel()
                end_until_done(self._end_sessions, trials)
                raise

    def _end_sessions(self) -> None:
        self.judge.end()
        for session in list(self._sessions):
            session.end()

    def _tried(self, entrant: Entrant, estimate: Estimate, *, beside: int) -> None:
        self.tell(entrant.name, "compiling and proving", estimate.words())
        with estimate.trial():
            tried = self._trial(entrant)
        self.done(entrant.name, msgspec.structs.replace(tried, compiled_beside=beside))

    def _trial(self, entrant: Entrant) -> Trying:
        request = Try(
            setup=self.setup,
            arm=self.arms[entrant.name],
            digest=self.prepared.digest,
            proving=self.proving,
        )
        # A backend may have deleted or changed the files that others were given.
        folder = self.folder / f"trial-{secret():x}"
        folder.mkdir()
        sets = dataclasses.replace(self.sets, files=tuple(folder / x.name for x in self.sets.files))
        try:
            self.caches.empty(entrant.name)
            reveal(self.judge, sets)
            with self._session(entrant) as session:
                finished, given = self._called(session, request, sets)
            judged = self.judge.verdict(given)
        except NoReply as lost:
            return Trying(status=lost.status, reason=lost.reason)
        if finished.disturbs:
            self.disturbing[entrant.name] = "it changed what all in a process share"
        return _outcome(finished, judged, len(given))

    @contextlib.contextmanager
    def _session(self, entrant: Entrant) -> Iterator[Session[Request, Reply]]:
        with self.open_session(self.caches.environment(entrant.name)) as session:
            self._sessions.add(session)
            try:
                yield session
            finally:
                self._sessions.discard(session)

    def _called(
        self, session: Session[Request, Reply], request: Try, sets: InputSets
    ) -> tuple[Finished, list[Piece]]:
        """Have an arm called, again and again, within the time that it has for all."""
        deadline = time.monotonic() + self.limits.backend_s

        def ask(wanted: Request) -> Reply:
            return session.ask(wanted, timeout_s=max(0.1, deadline - time.monotonic()))

        def file(inputs: int) -> str | None:
            return str(sets.files[inputs - 1]) if inputs else None

        def hand(picked: int | None) -> str:
            path = str(self.folder / f"given-{secret():x}")
            ask(Hand(path=path, picked=picked))
            return path

        ask(request)
        arm = request.arm.name
        given = pieces(
            seeds=sets.seeds[: 1 + len(sets.files)],
            row=self.prepared.row,
            call=lambda inputs, fresh: ask(Call(arm=arm, inputs=file(inputs), fresh=fresh)),
            call_row=lambda row: ask(CallRow(inputs=tuple(map(file, row)))),
            hand=hand,
        )
        finished = ask(Finish())
        assert isinstance(finished, Finished)
        # Not who disturbs: where it ran is not where others run.
        if self.capture and finished.graphs and not (finished.disturbs or finished.fault):
            self._find_graphs(ask)
        return finished, given

    def _find_graphs(self, ask: Callable[[Request], Reply]) -> None:
        """Ask an arm's process which graphs backends are handed; one says it for all."""
        if not self._asking.acquire(blocking=False):  # somebody is being asked: nobody waits
            return
        try:
            if self.captured is None:
                captured = ask(Capture())
                assert isinstance(captured, Captured)
                self.captured = captured
        except NoReply:
            pass  # then the next one is asked, or nothing is kept
        finally:
            self._asking.release()


def _outcome(finished: Finished, judged: Judged, calls: int) -> Trying:
    """Return how a backend did in its trial."""
    verdict = VerdictRecord.of(judged, calls)
    notes = list(finished.notes)
    if finished.disturbs:
        notes.append(f"changed for everybody in its process: {', '.join(finished.disturbs)}")
    measured = {x: getattr(finished, x) for x in Measured.__struct_fields__}
    row = Trying(status="ok", verdict=verdict, **measured | {"notes": tuple(notes)})
    if finished.graphs == 0:
        reason = "Dynamo captured no graph, so this backend compiled nothing"
        return msgspec.structs.replace(row, status="failed", reason=reason, verdict=None)
    if judged.passed and finished.fault:
        seen = msgspec.structs.replace(verdict, passed=False, reason=finished.fault)
        return msgspec.structs.replace(row, status="wrong", reason=finished.fault, verdict=seen)
    if not judged.passed:
        return msgspec.structs.replace(row, status="wrong", reason=verdict.why)
    left = finished.left_to_torch
    if left is not None and left.left and AS_IT_IS not in notes:
        return msgspec.structs.replace(row, notes=(*notes, left.worded()))
    return row


def reveal(judge: Judge, sets: InputSets) -> None:
    """Write the inputs of all sets but the last: a backend may have deleted the files."""
    for number, file in enumerate(sets.files, 1):
        judge.reveal(number, file)
