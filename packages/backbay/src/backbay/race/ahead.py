"""Sessions whose processes start before they are needed: to import torch takes them seconds."""

import contextlib
import threading
from collections.abc import Mapping
from typing import Self

from backbay.race.requests import Reply, Request
from backbay.race.trials import OpenSession
from backbay.session import NoReply, Session


class Ahead:
    """Opens sessions, and has some of their processes started before.

    Nothing is asked of these until they are opened: they have loaded no backend and no model.
    """

    def __init__(self, open_session: OpenSession) -> None:
        self._open = open_session
        self._started: list[tuple[Mapping[str, str], Session[Request, Reply]]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes that nobody needed."""
        for _, session in self._started:
            session.end()

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process of a session with these environment variables."""
        session = self._open(environment)
        self._started.append((environment, session))
        with contextlib.suppress(NoReply):  # who asks it is told
            session.open()

    def __call__(self, environment: Mapping[str, str]) -> Session[Request, Reply]:
        """Return a session with these environment variables, one that was started if there is."""
        with self._lock:
            for number, (known, session) in enumerate(self._started):
                if known == environment:
                    del self._started[number]
                    return session
        return self._open(environment)
