"""Sessions whose processes start before they are needed: to import torch takes them seconds."""

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from backbay.race.requests import GetReady, Reply, Request
from backbay.race.trials import OpenSession
from backbay.session import NoReply, Session, end_until_done


@dataclass(eq=False)
class _Started:
    """A session that ends with all others, until somebody has it."""

    environment: Mapping[str, str]
    session: Session[Request, Reply]
    ready: Future[None] | None = None
    """Done when it has done what it was asked."""


class Ahead:
    """Opens sessions, and has some of their processes started before.

    They load no backend until they are opened, and no model unless they are to get ready.
    """

    def __init__(self, open_session: OpenSession, *, timeout_s: float) -> None:
        """Start nothing yet.

        Args:
            open_session: opens each.
            timeout_s: that one may take to get ready.
        """
        self._open = open_session
        self._timeout_s = timeout_s
        self._started: list[_Started] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes that nobody needed."""

        def end() -> None:
            for one in self._started:
                one.session.end()

        end_until_done(end, [x.ready for x in self._started if x.ready is not None])
        self._pool.shutdown()

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process of a session with these environment variables."""
        session = self._open(environment)
        one = _Started(environment, session)
        self._started.append(one)
        with contextlib.suppress(NoReply):  # who asks it is told
            session.open()

    def get_ready(self, environment: Mapping[str, str], request: GetReady) -> None:
        """Have one that was started get ready meanwhile; who opens it waits for that."""
        with self._lock:
            one = self._found(environment)
            if one is not None:
                one.ready = self._pool.submit(self._asked, one, request)

    def _asked(self, one: _Started, request: GetReady) -> None:
        with contextlib.suppress(NoReply):  # as above
            one.session.ask(request, timeout_s=self._timeout_s)

    def __call__(self, environment: Mapping[str, str]) -> Session[Request, Reply]:
        """Return a session with these environment variables, one that was started if there is."""
        with self._lock:
            one = self._found(environment)
        if one is None:
            return self._open(environment)
        if one.ready is not None:
            one.ready.result()  # until then it is among those that end
        with self._lock:
            self._started.remove(one)
        return one.session

    def _found(self, environment: Mapping[str, str]) -> _Started | None:
        return next((x for x in self._started if x.environment == environment), None)
