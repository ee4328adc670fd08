"""Has goldens made, and what backends gave held against them: the second never where they run."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from backbay.judge import Piece
from backbay.judge.client import secret
from backbay.session import NoReply, Session
from backbay.verify.record import CheckRecord, Status
from backbay.verify.requests import (
    Alone,
    AlonePrepared,
    Call,
    Called,
    Calls,
    Course,
    Gave,
    NothingToTrain,
    Prepare,
    PrepareAlone,
    Prepared,
    Prove,
    Situation,
    VerifySession,
)
from backbay.verify.weighing_requests import (
    SERVICE,
    Drift,
    Drifted,
    Keep,
    KeepOne,
    Reply,
    Request,
    Reveal,
    Weigh,
    WeighCalls,
    Weighed,
)

FURTHER_SETS = 2
"""Sets of inputs beside the workload's own."""
_ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How it went in one situation."""

    checks: tuple[CheckRecord, ...] = ()
    """Empty where nothing was computed."""
    status: Status = "right"
    """That of the first check that is not ``right``; without checks, what became of it."""
    reason: str = ""
    graphs: int = 0
    breaks: int = 0
    hands_on_to: str = ""
    """The backend that generates its code, where it says so."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, gave: Gave, checks: tuple[CheckRecord, ...]) -> Self:
        """Return what a backend gave, once it was judged."""
        wrong = next((x for x in checks if x.status != "right"), None)
        return cls(
            checks=checks,
            status=gave.status if wrong is None else wrong.status,
            reason=gave.reason if wrong is None else wrong.reason,
            graphs=gave.graphs,
            breaks=gave.breaks,
            hands_on_to=gave.hands_on_to,
            notes=gave.notes,
        )

    @property
    def worst(self) -> CheckRecord | None:
        """The first check that is not right, else the first; None where there is none."""
        wrong = (x for x in self.checks if x.status != "right")
        return next(wrong, self.checks[0] if self.checks else None)


@dataclass(kw_only=True)
class Judge:
    """The judge of one workload, in all modes."""

    folder: Path
    open_reference: Callable[[], VerifySession]
    """Opens what makes goldens: a process in which no backend is loaded, or this one."""
    timeout_s: float
    _keeper: Session[Request, Reply] = field(default_factory=SERVICE.session, init=False)
    _reference: VerifySession | None = field(default=None, init=False)
    _alone: tuple[tuple[Course, Situation, str], AlonePrepared] | None = field(
        default=None, init=False
    )

    def end(self) -> None:
        """End its processes."""
        self._keeper.end()
        self.rest()

    def prepare(
        self, course: Course, steps: int, batches: tuple[int, ...] | None
    ) -> Prepared | NothingToTrain:
        """Make the goldens of one mode, and put them where no backend can write them.

        Raises:
            Refused: the workload can't be built, or there is no truth of it.
            Lost: the process died, or took too long.
        """
        seeds = tuple(secret() for _ in range(FURTHER_SETS))
        request = Prepare(course=course, steps=steps, batches=batches, seeds=seeds)
        prepared = self._asked.ask(request, timeout_s=self.timeout_s)
        if isinstance(prepared, NothingToTrain):
            return prepared
        assert isinstance(prepared, Prepared)
        keep = Keep(mode=course.setup.mode, bank=prepared.bank, goldens=prepared.goldens)
        self._keeper.ask(keep, timeout_s=self.timeout_s)
        return prepared

    def rest(self) -> None:
        """End what makes goldens; it is opened anew where it is needed."""
        if self._reference is not None:
            self._reference.end()
        self._reference = None

    def place(self) -> str:
        """Return the path of a new file for what a run gives."""
        return str(self.folder / f"given-{secrets.token_hex(8)}")

    def reveal(self, course: Course, inputs: int) -> str:
        """Return a file with the values of one set of inputs, written anew."""
        path = str(self.folder / f"{course.setup.mode} inputs-{inputs}")
        self._keeper.ask(
            Reveal(mode=course.setup.mode, inputs=inputs, path=path), timeout_s=self.timeout_s
        )
        return path

    def weighed(self, course: Course, situation: Situation, path: str) -> tuple[CheckRecord, ...]:
        """Return what comes of one run."""
        name = situation.name
        divided = situation.kind == "first"
        return self._weighed(course, golden=name, check=name, path=path, divided=divided)

    def weighed_calls(
        self, course: Course, situation: Situation, pieces: Sequence[Piece]
    ) -> CheckRecord:
        """Return what comes of several calls, the worst of which counts."""
        mode = course.setup.mode
        request = WeighCalls(mode=mode, check=situation.name, pieces=tuple(pieces))
        reply = self._keeper.ask(request, timeout_s=self.timeout_s)
        assert isinstance(reply, Weighed)
        return reply.checks[0]

    def drift(self, course: Course, path: str) -> float | None:
        """Return how far a free training leads from eager's."""
        request = Drift(mode=course.setup.mode, path=path)
        reply = self._keeper.ask(request, timeout_s=self.timeout_s)
        assert isinstance(reply, Drifted)
        return reply.drift

    def called(self, course: Course, timeout_s: float) -> Sequence[Call]:
        """Return the modules that the model calls, in eager; raises as `prepare` does."""
        reply = self._asked.ask(Calls(course=course), timeout_s=timeout_s)
        assert isinstance(reply, Called)
        return reply.calls

    def prepare_alone(
        self, course: Course, situation: Situation, module: str, timeout_s: float
    ) -> AlonePrepared:
        """Make the golden of one module alone; there may be none."""
        key = (course, situation, module)
        if self._alone is not None and self._alone[0] == key:
            return self._alone[1]
        path = str(self.folder / f"{_ALONE}.pt")
        request = PrepareAlone(course=course, situation=situation, module=module, path=path)
        try:
            reply = self._asked.ask(request, timeout_s=timeout_s)
        except NoReply as error:
            return AlonePrepared(unproven=error.reason)
        assert isinstance(reply, AlonePrepared)
        if not reply.unproven:
            keep = KeepOne(mode=course.setup.mode, name=_ALONE, path=path)
            self._keeper.ask(keep, timeout_s=self.timeout_s)
        self._alone = key, reply
        return reply

    def weighed_alone(
        self, course: Course, situation: Situation, path: str
    ) -> tuple[CheckRecord, ...]:
        """Return what comes of one run of the module whose golden was made last."""
        return self._weighed(course, golden=_ALONE, check=situation.name, path=path, divided=False)

    @property
    def _asked(self) -> VerifySession:
        if self._reference is None:
            self._reference = self.open_reference()
        return self._reference

    def _weighed(
        self, course: Course, *, golden: str, check: str, path: str, divided: bool
    ) -> tuple[CheckRecord, ...]:
        request = Weigh(
            mode=course.setup.mode, golden=golden, check=check, path=path, divided=divided
        )
        reply = self._keeper.ask(request, timeout_s=self.timeout_s)
        assert isinstance(reply, Weighed)
        return reply.checks


def judged(
    session: VerifySession,
    request: Prove | Alone,
    weigh: Callable[[], tuple[CheckRecord, ...]],
    *,
    timeout_s: float,
) -> Judged:
    """Return what a run was judged to be; no reply is a judgement as well."""
    try:
        gave = session.ask(request, timeout_s=timeout_s)
    except NoReply as error:
        return Judged(status=error.status, reason=error.reason)
    assert isinstance(gave, Gave)
    if gave.status != "right":
        return Judged.of(gave, ())
    try:
        return Judged.of(gave, weigh())
    except NoReply as error:
        return Judged(status="unproven", reason=f"it could not be judged: {error.reason}")
