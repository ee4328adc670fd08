"""Where one or more backends run: a child process, or this process for a model object."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from backbay.child import Child
from backbay.race.job import Reply, Request

if TYPE_CHECKING:
    from backbay.race.bench import Bench


class Lane(Protocol):
    """Answers requests in order; see `backbay.child.Child`."""

    def __enter__(self) -> Self:
        """Give the lane itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the lane."""

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Send a request and wait for its reply."""

    def stop(self) -> None:
        """Take the processor away while another lane is timed."""

    def resume(self) -> None:
        """Give the processor back."""


def open_child(environment: Mapping[str, str]) -> Child[Request, Reply]:
    """Start a child process that races; a lane that may be lost."""
    return Child("backbay.race.worker", Reply, environment)


class InProcessLane:
    """Runs requests in this process, for a model object, which cannot travel; isolates nothing."""

    def __init__(self, bench: "Bench", environment: Mapping[str, str]) -> None:
        self._bench = bench
        self._environment = environment
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        """Point this process at the race's caches."""
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the environment back; the bench outlives its lanes."""
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    def ask(self, request: Request, *, timeout_s: float) -> Reply:  # noqa: ARG002 (see below)
        """Carry out a request. There is no time limit: a thread of this process can't be ended."""
        return self._bench.answer(request)

    def stop(self) -> None:
        """Do nothing: there is one lane only."""

    def resume(self) -> None:
        """Do nothing."""
