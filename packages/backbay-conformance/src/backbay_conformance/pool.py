"""Runs cases in child processes, some at a time: a crash or a hang is a result, not the end."""

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backbay.errors import InputError
from backbay.session import Client, NoReply, Refused, Session
from backbay_conformance.attribution import attributed
from backbay_conformance.fuzz.program import Program
from backbay_conformance.record import FAILURES, LEVELS, Result, Status
from backbay_conformance.requests import SERVICE, Ran, Ready, Reply, Request, Run, SuiteSetup

START_S = 300.0
"""Time for a child to import torch, load the backend and collect the cases."""

Tell = Callable[[Result], None]
"""Called with each result, in the order in which they come; never by two threads at once."""

Ends = Callable[[Result], bool]
"""Asked of each result, by one thread at a time: whether it ends the run."""

OpenClient = Callable[[], Client[Request, Reply]]


class CaseSession(Session[Request, Reply]):
    """Runs cases, one after the other; every process is told first what is tested."""

    def __init__(self, setup: SuiteSetup, open_client: OpenClient) -> None:
        super().__init__(open_client)
        self._setup = setup
        self._ready: Ready | None = None

    def opened(self) -> Client[Request, Reply]:
        """Return a client whose process has loaded the backend.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        client = super().opened()
        try:
            reply = client.ask(self._setup, timeout_s=START_S)
        except NoReply as error:
            client.end()
            named = "" if isinstance(error, Refused) else f"backend {self._setup.backend!r}: "
            raise InputError(f"{named}{error.reason}") from error
        assert isinstance(reply, Ready)
        self._ready = reply
        return client

    def ready(self) -> Ready:
        """Return what is known of the cases; opens a client if there is none.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        self.open()
        assert self._ready is not None
        return self._ready

    def run(self, case_id: str, timeout_s: float, *, program: Program | None = None) -> Result:
        """Run a case; what fails is put to the rungs as well.

        Args:
            case_id: which; a program of the fuzzer's need not have been collected.
            timeout_s: what takes longer hangs; each rung has as long.
            program: what is run under this id instead.
        """

        def run_on(rung: str | None) -> Result:
            return self._once(Run(id=case_id, rung=rung, program=program), timeout_s)

        result = run_on(None)
        if result.status not in FAILURES:
            return result
        return attributed(result, self.ready().rungs, run_on)

    def _once(self, request: Run, timeout_s: float) -> Result:
        try:
            reply = self.ask(request, timeout_s=timeout_s)
        except NoReply as error:
            status: Status = "hang" if error.status == "timeout" else "crash"
            level = LEVELS.index(request.id.partition("/")[0])
            return Result(id=request.id, level=level, status=status, reason=error.reason)
        assert isinstance(reply, Ran)
        return reply.result


def run_all(
    setup: SuiteSetup,
    *,
    workers: int,
    tell: Tell,
    caches: Path | None = None,
    open_client: OpenClient | None = None,
    ends: Ends = lambda _result: False,
) -> tuple[Ready, list[Result]]:
    """Run every chosen case, on as many processes as asked for.

    Args:
        setup: what is tested, and how.
        workers: child processes side by side.
        tell: called with each result.
        caches: folder of the compilers' caches; an empty one if not given.
        open_client: opens what answers; child processes if not given.
        ends: asked of each result; after the first yes no further case is started.

    Returns:
        What was known of the cases, and the results in the order of the cases.

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
        opened = open_client or (lambda: start(caches or Path(empty)))
        first = CaseSession(setup, opened)
        ready = first.ready()
        others = [CaseSession(setup, opened) for _ in range(min(workers, len(ready.cases)) - 1)]
        cases = itertools.takewhile(lambda _: not ended, ready.cases)
        run_side_by_side([first, *others], cases, note)
    return ready, [found[case_id] for case_id, _ in ready.cases if case_id in found]


def run_side_by_side(
    sessions: Sequence[CaseSession], cases: Iterable[tuple[str, float]], note: Tell
) -> None:
    """Run cases on all sessions at once, each the next one when it is free; then end the sessions.

    Args:
        sessions: the first works in this thread, as cases in this process see its state.
        cases: ids and time limits in seconds; asked for one at a time.
        note: called with each result.

    Raises:
        Exception: what one session or ``note`` raised; the others finish their case first.
    """
    left, lock, stopped = iter(cases), threading.Lock(), threading.Event()

    def work(session: CaseSession) -> None:
        try:
            with session:
                while not stopped.is_set():
                    with lock:
                        case = next(left, None)
                    if case is None:
                        return
                    result = session.run(*case)
                    with lock:
                        note(result)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(len(sessions)) as threads:
        others = [threads.submit(work, x) for x in sessions[1:]]
        work(sessions[0])
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


def usual_workers() -> int:
    """Return how many processes run side by side where nobody says."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
