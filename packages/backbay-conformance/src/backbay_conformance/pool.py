"""Runs cases in child processes, some at a time: a crash or a hang is a result, not the end."""

import itertools
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol, Self

import msgspec

from backbay.errors import InputError
from backbay.session import Client, Lost, NoReply, Refused, Session, end_until_done
from backbay_conformance.attribution import attributed
from backbay_conformance.fuzz.program import Program
from backbay_conformance.record import FAILURES, LEVELS, UNTRIED, Result, Status
from backbay_conformance.requests import (
    SERVICE,
    Ran,
    Ready,
    Refer,
    Referred,
    Reply,
    Request,
    Run,
    SuiteSetup,
    Weigh,
    Weighed,
)

START_S = 300.0
"""Time for a child to import torch, load the backend and collect the cases."""

Tell = Callable[[Result], None]
"""Called with each result, in the order in which they come; never by two threads at once."""

Ends = Callable[[Result], bool]
"""Asked of each result, by one thread at a time: whether it ends the run."""

OpenClient = Callable[[], Client[Request, Reply]]


class Runner(Protocol):
    """Runs cases, one after the other."""

    is_abandoned: bool

    def __enter__(self) -> Self:
        """Return the runner itself."""

    def __exit__(self, *error: object) -> None:
        """End what it has started."""

    def ready(self) -> Ready:
        """Return what is known of the cases."""

    def run(self, case_id: str, timeout_s: float) -> Result:
        """Run a case."""

    def abandon(self) -> None:
        """Start no further case; called from another thread."""


class _Prepared(Session[Request, Reply]):
    """Every process is told first what is tested."""

    def __init__(self, setup: SuiteSetup, open_client: OpenClient) -> None:
        super().__init__(open_client)
        self._setup = setup
        self._ready: Ready | None = None
        self.is_abandoned = False

    def prepare(self, client: Client[Request, Reply]) -> None:
        """Have a process load the backend.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        if self.is_abandoned:
            raise Lost("the run was interrupted", "failed")
        try:
            reply = client.ask(self._setup, timeout_s=START_S)
        except NoReply as error:
            named = "" if isinstance(error, Refused) else f"backend {self._setup.backend!r}: "
            raise InputError(f"{named}{error.reason}") from error
        assert isinstance(reply, Ready)
        self._ready = reply

    def ready(self) -> Ready:
        """Return what is known of the cases; opens a client if there is none.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        self.open()
        assert self._ready is not None
        return self._ready


class CaseSession(_Prepared):
    """Runs cases, one after the other, and has them judged where the backend is not loaded."""

    def __init__(self, setup: SuiteSetup, open_client: OpenClient, open_judge: OpenClient) -> None:
        super().__init__(setup, open_client)
        self._judge = _Prepared(msgspec.structs.replace(setup, judges=True), open_judge)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the reply to a request; what judges outlives a process that is lost."""
        client = self.open()
        try:
            return client.ask(request, timeout_s=timeout_s)
        except Lost:
            super().end()
            raise

    def abandon(self) -> None:
        """End both processes from another thread; none is started anew."""
        self.is_abandoned = self._judge.is_abandoned = True
        self.end()

    def end(self) -> None:
        """End both processes."""
        super().end()
        self._judge.end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def run(self, case_id: str, timeout_s: float, *, program: Program | None = None) -> Result:
        """Run a case; what fails is put to the reference backends as well.

        Args:
            case_id: which; a program of the fuzzer's need not have been collected.
            timeout_s: what takes longer hangs; each has as long.
            program: what is run under this id instead.
        """

        def run_on(reference: str) -> Result:
            request = Run(id=case_id, reference=reference, program=program)
            return _ran(self._judge, request, timeout_s).result

        result = self._judged(case_id, timeout_s, program)
        if result.status not in FAILURES:
            return result
        return attributed(result, self.ready().reference_backends, run_on)

    def _judged(self, case_id: str, timeout_s: float, program: Program | None) -> Result:
        """Have one case run, and what it gives judged."""
        refer = Refer(id=case_id, program=program, traits=self.ready().traits)
        try:
            referred = self._judge.ask(refer, timeout_s=timeout_s)
        except NoReply as error:
            reason = f"uncompiled, it has no result: {error.reason}"
            return unfinished(case_id, "not_runnable", reason)
        assert isinstance(referred, Referred)
        path = self._place()
        request = Run(id=case_id, program=program, openings=referred.openings, path=path)
        ran = _ran(self, request, timeout_s)
        if ran.result.status in UNTRIED or not (ran.given or referred.asked):
            return ran.result
        whole = ran.result.status == "pass"
        try:
            weigh = Weigh(path=path, given=ran.given, whole=whole)
            weighed = self._judge.ask(weigh, timeout_s=timeout_s)
        except NoReply as error:
            reason = f"what it gave could not be judged: {error.reason}"
            return unfinished(case_id, "not_runnable", reason)
        assert isinstance(weighed, Weighed)
        result = msgspec.structs.replace(ran.result, judged=len(ran.given))
        if weighed.status is None:
            return result
        return msgspec.structs.replace(result, status=weighed.status, reason=weighed.reason)

    def _place(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="backbay-conform-")
        return str(Path(self._folder.name) / secrets.token_hex(8))


def _ran(session: Session[Request, Reply], request: Run, timeout_s: float) -> Ran:
    try:
        reply = session.ask(request, timeout_s=timeout_s)
    except NoReply as error:
        status: Status = "hang" if error.status == "timeout" else "crash"
        return Ran(result=unfinished(request.id, status, error.reason))
    assert isinstance(reply, Ran)
    return reply


def unfinished(case_id: str, status: Status, reason: str) -> Result:
    """Return the result of a case that did not come to its end."""
    level = LEVELS.index(case_id.partition("/")[0])
    return Result(id=case_id, level=level, status=status, reason=reason)


def run_all(
    setup: SuiteSetup,
    *,
    workers: int,
    tell: Tell,
    caches: Path | None = None,
    open_client: OpenClient | None = None,
    ends: Ends = lambda _result: False,
    runners: Sequence[Runner] = (),
) -> tuple[Ready, list[Result], KeyboardInterrupt | None]:
    """Run every chosen case, on as many processes as asked for.

    Args:
        setup: what is tested, and how.
        workers: child processes side by side.
        tell: called with each result.
        caches: folder of the compilers' caches; an empty one if not given.
        open_client: opens what answers; child processes if not given.
        ends: asked of each result; after the first yes no further case is started.
        runners: who runs the cases; child processes of this one if there are none.

    Returns:
        What was known of the cases, the results in the order of the cases, and what interrupted
        the run, if something did.

    Raises:
        InputError: the backend cannot be loaded, or what was asked for does not exist.
    """
    found: dict[str, Result] = {}
    ended = False

    def note(result: Result) -> None:
        nonlocal ended
        found[result.id] = result
        tell(result)
        ended = ended or ends(result)

    with tempfile.TemporaryDirectory(prefix="backbay-conform-") as empty:
        folder = caches or Path(empty)
        opened = open_client or (lambda: start(folder))
        first = runners[0] if runners else CaseSession(setup, opened, judge_in(folder))
        ready = first.ready()
        others = runners[1:] or [
            CaseSession(setup, opened, judge_in(folder))
            for _ in range(0 if runners else min(workers, len(ready.cases)) - 1)
        ]
        cases = itertools.takewhile(lambda _: not ended, ready.cases)
        interruption: KeyboardInterrupt | None = None
        try:
            run_side_by_side([first, *others], cases, note)
        except KeyboardInterrupt as stopped:
            interruption = stopped
    results = [found[case_id] for case_id, _ in ready.cases if case_id in found]
    return ready, results, interruption


def run_side_by_side(
    sessions: Sequence[Runner], cases: Iterable[tuple[str, float]], note: Tell
) -> None:
    """Run cases on all sessions at once, each the next one when it is free; then end the sessions.

    Args:
        sessions: the first works in this thread, as cases in this process see its state.
        cases: ids and time limits in seconds; asked for one at a time.
        note: called with each result.

    Raises:
        KeyboardInterrupt: the case that each was at is lost.
        Exception: what one session or ``note`` raised; the others finish their case first.
    """
    left, lock, stopped = iter(cases), threading.Lock(), threading.Event()

    def work(session: Runner) -> None:
        try:
            with session:
                while not stopped.is_set():
                    with lock:
                        case = next(left, None)
                    if case is None:
                        return
                    result = session.run(*case)
                    with lock:
                        if not session.is_abandoned:
                            note(result)
        except BaseException:
            stopped.set()
            raise

    def abandon() -> None:
        for session in sessions:
            session.abandon()

    with ThreadPoolExecutor(len(sessions)) as threads:
        others = [threads.submit(work, x) for x in sessions[1:]]
        try:
            work(sessions[0])
            wait(others)
        except KeyboardInterrupt:
            stopped.set()
            end_until_done(abandon, others)
            raise
    for other in others:
        other.result()


def start(caches: Path) -> Client[Request, Reply]:
    """Start a child whose compiler caches are in a folder, one process's thread each."""
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return SERVICE.start(environment)


def judge_in(caches: Path) -> OpenClient:
    """Return what starts a child that judges; its compiler caches are its own."""
    return lambda: start(caches / "judge")


def usual_workers() -> int:
    """Return how many processes run side by side where nobody says."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
