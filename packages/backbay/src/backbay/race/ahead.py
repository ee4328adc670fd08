"""Sessions whose processes start before they are needed: what that takes is done meanwhile."""

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from backbay.race.requests import GetReady, Reply, Request
from backbay.race.trials import OpenSession
from backbay.session import NoReply, Session, end_until_done


@dataclass
class _Started:
    """A session that nobody has yet."""

    environment: Mapping[str, str]
    session: Session[Request, Reply]
    ready: Future[None] | None = None
    """Done when it has done what it was asked."""


class Ahead:
    """Opens sessions, and has some of their processes started before, and made ready.

    These load no backend until they are opened.
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
        self._over = False
        self._pool = ThreadPoolExecutor()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes that nobody needed."""
        self._over = True

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
            one.ready = self._pool.submit(self._asked, one, GetReady())

    def get_ready(self, environment: Mapping[str, str], request: GetReady) -> None:
        """Have one that was started, if there is one, do more of what it needs."""
        with self._lock:
            one = next((x for x in self._started if x.environment == environment), None)
            if one is not None and one.ready is not None:
                one.ready = self._pool.submit(self._asked, one, request, after=one.ready)

    def _asked(
        self, one: _Started, request: GetReady, *, after: Future[None] | None = None
    ) -> None:
        if after is not None:
            after.result()
        if self._over:  # to ask would start another process
            return
        with contextlib.suppress(NoReply):  # as above
            one.session.ask(request, timeout_s=self._timeout_s)

    def __call__(self, environment: Mapping[str, str]) -> Session[Request, Reply]:
        """Return a session with these environment variables, one that was started if there is."""
        with self._lock:
            one = next((x for x in self._started if x.environment == environment), None)
            if one is not None:
                self._started.remove(one)
        if one is None:
            return self._open(environment)
        if one.ready is not None:
            one.ready.result()
        return one.session
