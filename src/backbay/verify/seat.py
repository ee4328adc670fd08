"""Where one backend is asked: in child processes, each replaced when it is lost."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from backbay.child import Child, ChildLost, Loss
from backbay.verify.job import Judged, Refused, Reply, Request
from backbay.verify.record import Status

if TYPE_CHECKING:
    from backbay.verify.answering import Desk

_LOST: Mapping[Loss, Status] = {"crashed": "crashed", "timeout": "timeout", "failed": "failed"}


class Lane(Protocol):
    """Answers requests in order."""

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Send a request and wait for its reply."""

    def end(self) -> None:
        """End it."""


OpenLane = Callable[[], Lane]


class Here:
    """Answers in this process, for a model object; isolates nothing and knows no time limit."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk

    def ask(self, request: Request, *, timeout_s: float) -> Reply:  # noqa: ARG002 (a thread can't be ended)
        """Carry out a request."""
        return self._desk.answer(request)

    def end(self) -> None:
        """Nothing was started."""


def open_child(environment: Mapping[str, str]) -> Lane:
    """Start a child process."""
    return Child[Request, Reply]("backbay.verify.worker", Reply, environment)


class Seat:
    """Asks a lane that is opened when it is needed, and anew when it was lost."""

    def __init__(self, open_lane: OpenLane) -> None:
        self._open = open_lane
        self._lane: Lane | None = None

    def __enter__(self) -> Self:
        """Give the seat itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the lane."""
        self._leave()

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Ask; a lane that is lost is a reply that says how."""
        lane = self._lane = self._lane or self._open()
        try:
            return lane.ask(request, timeout_s=timeout_s)
        except ChildLost as lost:
            self._leave()
            return Judged(status=_LOST[lost.status], reason=lost.reason)

    def judged(self, request: Request, *, timeout_s: float) -> Judged:
        """Ask for a judgement; a request that is refused failed."""
        reply = self.ask(request, timeout_s=timeout_s)
        if isinstance(reply, Refused):
            return Judged(status="failed", reason=reply.reason)
        assert isinstance(reply, Judged)
        return reply

    def _leave(self) -> None:
        if self._lane is not None:
            self._lane.end()
        self._lane = None
