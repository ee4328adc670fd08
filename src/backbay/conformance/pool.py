"""Runs cases in child processes, some at a time: a crash or a hang is a result, not the end."""

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self

from backbay.child import Child, ChildLost
from backbay.conformance import job
from backbay.conformance.fuzz.program import Program
from backbay.conformance.record import FAILURES, LEVELS, Result, Status
from backbay.conformance.rungs import charged
from backbay.errors import InputError

START_S = 300.0
"""Time for a child to import torch, load the backend and collect the cases."""

Tell = Callable[[Result], None]
"""Called with each result, in the order in which they come; never by two threads at once."""


Ends = Callable[[Result], bool]
"""Asked of each result, by one thread at a time: whether it ends the run."""


class Desk(Protocol):
    """Answers requests in order: a child process, or this one for an object that cannot travel."""

    def ask(self, request: job.Request, *, timeout_s: float) -> job.Reply:
        """Send a request and wait for its reply."""

    def end(self) -> None:
        """End it."""


OpenDesk = Callable[[], Desk]


class Seat:
    """One place where cases are run, one after the other; a child that is lost is replaced."""

    def __init__(self, setup: job.Setup, open_desk: OpenDesk) -> None:
        self._setup = setup
        self._open = open_desk
        self._desk: Desk | None = None
        self._ready: job.Ready | None = None

    def __enter__(self) -> Self:
        """Give the seat itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the child."""
        self._leave()

    def ready(self) -> job.Ready:
        """Start the child if there is none, and give what it said of the cases.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        if self._desk is not None and self._ready is not None:
            return self._ready
        self._desk = self._open()
        try:
            reply = self._desk.ask(self._setup, timeout_s=START_S)
        except ChildLost as lost:
            self._leave()
            raise InputError(f"backend {self._setup.backend!r}: {lost.reason}") from lost
        if not isinstance(reply, job.Ready):
            self._leave()
            raise InputError(reply.reason if isinstance(reply, job.Refused) else str(reply))
        self._ready = reply
        return reply

    def run(self, case_id: str, timeout_s: float, *, program: Program | None = None) -> Result:
        """Run a case; what does not come back is put to the rungs in processes of their own.

        Args:
            case_id: which; a program of the fuzzer's need not have been collected.
            timeout_s: what takes longer hangs.
            program: what is run under this id instead.
        """
        result = self._once(job.Run(id=case_id, program=program), timeout_s)
        if result.status not in {"crash", "hang"}:
            return result
        below: dict[str, Status] = {}
        for rung in self.ready().rungs:
            one = self._once(
                job.Run(id=case_id, rung=rung, attribute=False, program=program), timeout_s
            )
            below[rung] = one.status
            if one.status == result.status:
                return charged(result, rung, one.reason, below)
        return charged(result, None, "", below)

    def ask(self, request: job.Request, *, timeout_s: float) -> job.Reply:
        """Ask what is no run of a case; the child is started if there is none.

        Raises:
            ChildLost: the child died, or did not answer in time.
        """
        self.ready()
        assert self._desk is not None
        return self._desk.ask(request, timeout_s=timeout_s)

    def _once(self, request: job.Run, timeout_s: float) -> Result:
        self.ready()
        assert self._desk is not None
        try:
            reply = self._desk.ask(request, timeout_s=timeout_s)
        except ChildLost as lost:
            self._leave()
            status: Status = "hang" if lost.status == "timeout" else "crash"
            level = LEVELS.index(request.id.partition("/")[0])
            return Result(id=request.id, level=level, status=status, reason=lost.reason)
        assert isinstance(reply, job.Ran)
        return reply.result

    def _leave(self) -> None:
        if self._desk is not None:
            self._desk.end()
        self._desk = None


def run_all(
    setup: job.Setup,
    *,
    workers: int,
    tell: Tell,
    caches: Path | None = None,
    open_desk: OpenDesk | None = None,
    ends: Ends = lambda _result: False,
) -> tuple[job.Ready, list[Result]]:
    """Run every chosen case, on as many processes as asked for.

    Args:
        setup: what is tested, and how.
        workers: child processes side by side.
        tell: called with each result.
        caches: folder of the compilers' caches; an empty one if not given.
        open_desk: opens what answers; child processes if not given.
        ends: asked of each result; after the first yes no further case is started.

    Returns:
        What was known of the cases, and the results in the order of the cases.

    Raises:
        InputError: the backend cannot be loaded, or what was asked for does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="backbay-conform-") as empty:
        opened = open_desk or (lambda: open_child(caches or Path(empty)))
        with Seat(setup, opened) as first:
            ready = first.ready()
            todo: queue.SimpleQueue[tuple[int, str, float]] = queue.SimpleQueue()
            for number, (case_id, timeout_s) in enumerate(ready.cases):
                todo.put((number, case_id, timeout_s))
            found: dict[int, Result] = {}
            work = _Work(todo, found, tell, ends)
            further = min(workers, len(ready.cases)) - 1
            threads = [
                threading.Thread(target=work.at_another, args=(setup, opened))
                for _ in range(further)
            ]
            for thread in threads:
                thread.start()
            work.at(first)
            for thread in threads:
                thread.join()
    if work.error is not None:
        raise work.error
    return ready, [found[number] for number in sorted(found)]


class _Work:
    """The cases that are left, shared by all seats."""

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

    def at_another(self, setup: job.Setup, open_desk: OpenDesk) -> None:
        try:
            with Seat(setup, open_desk) as seat:
                self.at(seat)
        except BaseException as error:  # noqa: BLE001 (a thread's error belongs to who waits)
            self.error = error

    def at(self, seat: Seat) -> None:
        while self.error is None and not self._ended:
            try:
                number, case_id, timeout_s = self._todo.get_nowait()
            except queue.Empty:
                return
            result = seat.run(case_id, timeout_s)
            with self._telling:
                self._found[number] = result
                self._tell(result)
                self._ended = self._ended or self._ends(result)


def open_child(caches: Path) -> Child[job.Request, job.Reply]:
    """Start a child whose compiler caches are in a folder, one process's thread each."""
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return Child("backbay.conformance.worker", job.Reply, environment)


def usual_workers() -> int:
    """Give how many processes run side by side where nobody says."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def failures(results: Sequence[Result]) -> list[Result]:
    """Give the results that are held against the backend, expected or not."""
    return [x for x in results if x.status in FAILURES]
