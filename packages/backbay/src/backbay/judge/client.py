"""Asks the processes of a judge. No torch here."""

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from backbay.judge.requests import (
    SERVICE,
    Compare,
    Judged,
    Keep,
    Piece,
    Prepare,
    Prepared,
    Reply,
    Request,
    Reveal,
)
from backbay.session import Lost, NoReply, Session
from backbay.workloads.setup import WorkloadSetup

FURTHER_SETS = 3
"""Sets of inputs beside the workload's own. The last one is not shown before timing has ended."""

JudgeSession = Session[Request, Reply]
OpenSession = Callable[[], JudgeSession]


class JudgeLost(NoReply):
    """The process that keeps the reference is gone, and so is the reference."""


def secret() -> int:
    """Return a seed that nobody can guess; torch takes 63 bits."""
    return secrets.randbits(62)


class Judge:
    """The judge of one workload.

    ``open_session`` makes the reference: in a child process, which is gone before a backend runs,
    or in this one for a model that can't travel. What is kept of it always is in a child.
    """

    def __init__(
        self,
        setup: WorkloadSetup,
        folder: Path,
        *,
        open_session: OpenSession,
        timeout_s: float,
    ) -> None:
        self._setup = setup
        self._bank = folder / "bank.pt"
        self._open_session = open_session
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._keeper: Session[Request, Reply] = SERVICE.session()
        self.lost: str | None = None
        """How its process was lost, if it was; another one would have nothing to compare with."""

    def __enter__(self) -> Self:
        """Return the judge itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End its process."""
        self.end()
        with contextlib.suppress(OSError):
            self._bank.unlink(missing_ok=True)

    def end(self) -> None:
        """End its process, also while another thread asks it."""
        self.lost = self.lost or "it was ended"
        self._keeper.end()

    def prepare(self) -> Prepared:
        """Make the reference, and put it where no backend can write it.

        Raises:
            Refused: the workload can't be built, or there is no truth of it.
            NoReply: the process died, or took too long.
        """
        seeds = tuple(secret() for _ in range(FURTHER_SETS))
        self._keeper.open()  # its process starts meanwhile
        with self._open_session() as session:
            request = Prepare(setup=self._setup, bank=str(self._bank), seeds=seeds)
            prepared = session.ask(request, timeout_s=self._timeout_s)
        assert isinstance(prepared, Prepared)
        self._keeper.ask(Keep(bank=str(self._bank)), timeout_s=self._timeout_s)
        self._keeper.stop()
        return prepared

    def reveal(self, inputs: int, path: Path) -> None:
        """Write the inputs of one set to a file.

        Raises:
            NoReply: it could not; `JudgeLost`: nor can anything else be asked.
        """
        self._ask(Reveal(inputs=inputs, path=str(path)))

    def verdict(self, pieces: Sequence[Piece]) -> Judged:
        """Return whether all of what a backend gave is right.

        Raises:
            NoReply: it can't be judged; `JudgeLost`: nor can anything else.
        """
        judged = self._ask(Compare(pieces=tuple(pieces)))
        assert isinstance(judged, Judged)
        return judged

    def _ask(self, request: Request) -> Reply:
        """Ask the child that keeps the reference, which is stopped in between."""
        with self._lock:  # trials run side by side
            if self.lost is not None:
                raise JudgeLost(f"the judge was lost: {self.lost}")
            self._keeper.resume()
            try:
                return self._keeper.ask(request, timeout_s=self._timeout_s)
            except Lost as lost:
                self.lost = lost.reason
                raise JudgeLost(f"the judge was lost: {lost.reason}") from lost
            finally:
                self._keeper.stop()
