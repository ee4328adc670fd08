"""Runs cases in child processes, some at a time: a crash or a hang is a result, not the end."""

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from backbay.errors import InputError
from backbay.session import Client, NoReply, Refused, Session
from backbay_conformance.attribution import with_attribution
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
        """Run a case; what does not come back is put to the rungs in processes of their own.

        Args:
            case_id: which; a program of the fuzzer's need not have been collected.
            timeout_s: what takes longer hangs.
            program: what is run under this id instead.
        """
        result = self._once(Run(id=case_id, program=program), timeout_s)
        if result.status not in {"crash", "hang"}:
            return result
        below: dict[str, Status] = {}
        for rung in self.ready().rungs:
            one = self._once(
                Run(id=case_id, rung=rung, attribute=False, program=program), timeout_s
            )
            below[rung] = one.status
            if one.status == result.status:
                return with_attribution(result, rung, one.reason, below)
        return with_attribution(result, None, "", below)

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
    with tempfile.TemporaryDirectory(prefix="backbay-conform-") as empty:
        opened = open_client or (lambda: start(caches or Path(empty)))
        with CaseSession(setup, opened) as first:
            ready = first.ready()
            todo: queue.SimpleQueue[tuple[int, str, float]] = queue.SimpleQueue()
            for number, (case_id, timeout_s) in enumerate(ready.cases):
                todo.put((number, case_id, timeout_s))
            found: dict[int, Result] = {}
            work = _Work(todo, found, tell, ends)
            further = min(workers, len(ready.cases)) - 1
            threads = [
                threading.Thread(target=work.run_apart, args=(setup, opened))
                for _ in range(further)
            ]
            for thread in threads:
                thread.start()
            work.run(first)
            for thread in threads:
                thread.join()
    if work.error is not None:
        raise work.error
    return ready, [found[number] for number in sorted(found)]


class _Work:
    """The cases that are left, shared by all sessions."""

    def __init__(
        self,
        todo: "queue.SimpleQueue[tuple[int, str, float]]",
        found: dict[int, Result],
        tell: Tell,
        ends: Ends,
    ) -> None:
        self._todo = todo
        self._found = found
        self._tell = tell
        self._ends = ends
        self._ended = False
        self._telling = threading.Lock()
        self.error: BaseException | None = None

    def run_apart(self, setup: SuiteSetup, open_client: OpenClient) -> None:
        try:
            with CaseSession(setup, open_client) as session:
                self.run(session)
        except BaseException as error:  # noqa: BLE001 (a thread's error belongs to who waits)
            self.error = error

    def run(self, session: CaseSession) -> None:
        while self.error is None and not self._ended:
            try:
                number, case_id, timeout_s = self._todo.get_nowait()
            except queue.Empty:
                return
            result = session.run(case_id, timeout_s)
            with self._telling:
                self._found[number] = result
                self._tell(result)
                self._ended = self._ended or self._ends(result)


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


def failures(results: Sequence[Result]) -> list[Result]:
    """Return the results that are held against the backend, expected or not."""
    return [x for x in results if x.status in FAILURES]
