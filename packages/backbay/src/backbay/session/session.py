"""What can be asked in another process, and the session in which it is asked."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Self

from backbay.session.client import Client, LocalClient, ProcessClient, Reply, Request
from backbay.session.interrupts import uninterrupted
from backbay.session.protocol import Handler, Lost

_AGAIN_S = 0.1


@dataclass(frozen=True)
class Service(Generic[Request, Reply]):
    """A handler that other processes find by its name, and what it answers."""

    handler: str
    """``module:attribute``; called without arguments it returns the handler."""
    replies: Mapping[type, Any]
    """The type of each request to that of its reply, as msgspec decodes it; may be a union. A reply
    of another type is not believed."""

    def start(
        self, environment: Mapping[str, str], path: Sequence[str] | None = None
    ) -> Client[Request, Reply]:
        """Start a child process."""
        return ProcessClient(self, environment, path=path)

    def session(
        self,
        environment: Mapping[str, str] | None = None,
        path: Sequence[str] | None = None,
    ) -> "Session[Request, Reply]":
        """Return a session in child processes, which get variables beside this process's own.

        Args:
            environment: the variables.
            path: folders that they import from, after all others; default: the current one.
        """
        return Session(lambda: self.start(environment or {}, path))

    def here(
        self, handler: Handler[Request, Reply], environment: Mapping[str, str] | None = None
    ) -> "Session[Request, Reply]":
        """Return a session with a handler in this process, which gets the variables meanwhile.

        It is for an object that cannot travel; it isolates nothing.
        """
        return Session(lambda: LocalClient(self, handler, environment or {}))


class Session(Generic[Request, Reply]):
    """Asks a client that is opened when it is needed, and another one when that was lost."""

    def __init__(self, open_client: Callable[[], Client[Request, Reply]]) -> None:
        self._open = open_client
        self._client: Client[Request, Reply] | None = None

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the client."""
        self.end()

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the reply to a request.

        Raises:
            Lost: the client is gone; the next request opens another one.
            Refused: the handler raised.
        """
        client = self.open()
        try:
            return client.ask(request, timeout_s=timeout_s)
        except Lost:
            self.end()
            raise

    def open(self) -> Client[Request, Reply]:
        """Return the client; opens one if there is none."""
        if self._client is not None:
            return self._client
        with uninterrupted():  # until it is known here, nobody could end it
            client = self._client = self._open()
        try:
            self.prepare(client)
        except BaseException:
            self.end()
            raise
        return client

    def prepare(self, client: Client[Request, Reply]) -> None:
        """Ask a new client what each of them must know first; subclasses may."""

    def stop(self) -> None:
        """Pause the process until `resume`."""
        if self._client is not None:
            self._client.stop()

    def resume(self) -> None:
        """Let the process go on."""
        if self._client is not None:
            self._client.resume()

    def end(self) -> None:
        """End the client, if there is one."""
        client, self._client = self._client, None  # another thread may open one meanwhile
        if client is not None:
            client.end()


def end_until_done(end: Callable[[], None], asking: Sequence[Future[Any]]) -> None:
    """End sessions that other threads ask, again and again until these threads are done.

    One may be about to open a client when its session ends: that client ends in the next round.
    """
    end()
    while wait(asking, timeout=_AGAIN_S).not_done:
        end()
