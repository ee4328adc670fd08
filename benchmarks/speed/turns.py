"""Several workloads get ready at once, and one at a time is timed, the others stopped.

Compiling takes most of a benchmark's time, and most of a machine's cores lie idle meanwhile.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from backbay import session
from speed import requests

Client = session.Client[requests.Request, requests.Reply]
Task = TypeVar("Task")

FOLDER = Path(__file__).parent.parent
_SETTLE_S = 0.3
"""Until what the stopped ones had handed to the device is done."""


def started() -> Client:
    """Start a child process that measures."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    return requests.SERVICE.start(environment)


class ClosedError(Exception):
    """The benchmark is being left."""


_OPEN: "weakref.WeakSet[Turns]" = weakref.WeakSet()


def leave_when_told() -> None:
    """On SIGTERM end every process that measures, and then this one: a GPU is not left in use."""

    def leave(number: int, _frame: object) -> None:
        for turns in list(_OPEN):
            turns.close()
        sys.stdout.flush()
        os._exit(128 + number)  # an exception might be raised where a library swallows it

    signal.signal(signal.SIGTERM, leave)


class Turns:
    """Knows every process of a benchmark, and lets one run alone."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._clients: list[Client] = []
        self._closed = False
        _OPEN.add(self)

    def start(self) -> Client:
        """Start a process; not while another is alone."""
        with self._turn:
            if self._closed:
                raise ClosedError
            self._clients.append(started())
            return self._clients[-1]

    def close(self) -> None:
        """End every process, and start no other: whoever waits for one is freed."""
        self._closed = True
        for client in self._clients:
            client.end()

    def end(self, client: Client) -> None:
        """End a process."""
        client.end()
        with self._turn:
            self._clients.remove(client)

    @contextlib.contextmanager
    def alone(self, client: Client) -> Iterator[None]:
        """Stop all others meanwhile; whoever wants the same waits."""
        with self._turn:
            others = [x for x in self._clients if x is not client]
            for other in others:
                other.stop()
            if others:
                time.sleep(_SETTLE_S)
            try:
                yield
            finally:
                for other in others:
                    other.resume()


class Clients:
    """One process after the other: the same for all workloads, or a fresh one for each."""

    def __init__(self, turns: Turns, *, fresh: bool) -> None:
        self._turns = turns
        self._fresh = fresh
        self._client: Client | None = None

    def take(self) -> Client:
        """Return the process to use now."""
        if self._client is None:
            self._client = self._turns.start()
        return self._client

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Let the process run without the others."""
        return self._turns.alone(self.take())

    def done(self, *, lost: bool) -> None:
        """Be done with a workload; who was lost or must be fresh is ended."""
        if lost or self._fresh:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._client is not None:
            self._turns.end(self._client)
            self._client = None


def work_through(
    tasks: Sequence[Task],
    work: Callable[[Task, Clients], None],
    *,
    ahead: int,
    fresh: bool,
    until: float,
) -> bool:
    """Do tasks in order, so many at once; return whether all were begun before the time was up.

    Args:
        tasks: what to do.
        work: does one, with the processes it is given.
        ahead: how many at once.
        fresh: whether each task has a process of its own.
        until: seconds from now, after which none is begun.
    """
    turns, end, left = Turns(), time.monotonic() + until, iter(tasks)
    next_one, skipped = threading.Lock(), threading.Event()

    def take_turns() -> None:
        clients = Clients(turns, fresh=fresh)
        try:
            while True:
                with next_one:
                    task = next(left, None)
                if task is None:
                    return
                if time.monotonic() > end:
                    skipped.set()
                    return
                work(task, clients)
        finally:
            clients.close()

    with ThreadPoolExecutor(max_workers=ahead) as pool:
        futures = [pool.submit(take_turns) for _ in range(ahead)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            turns.close()
            raise
    return not skipped.is_set()
