"""Puts one backend through every situation of every mode, and what fails to torch's own below it.

Nothing here touches torch: that happens in sessions. A backend that raises, dies or hangs is a row
with its reason.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from backbay.reference_backends import references_below
from backbay.reporting.wording import counted
from backbay.session import NoReply
from backbay.verify.blaming import Search
from backbay.verify.record import (
    FAILURES,
    BackendRecord,
    BlameRecord,
    CheckRecord,
    CurveRecord,
    Limits,
    Status,
)
from backbay.verify.requests import (
    Judged,
    Part,
    Prepared,
    Prove,
    Situation,
    Train,
    Trained,
    VerifySession,
    judged,
)
from backbay.verify.wording import verdict
from backbay.workloads.setup import Mode, WorkloadSetup

Tell = Callable[[str, str, str], None]
"""Called with workload, backend and what is going on."""

_ENDS_IT: frozenset[Status] = frozenset({"failed", "crashed", "timeout", "not_compiled"})
"""What leaves nothing to try: the model does not run compiled at all."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One mode's situations, and what they are held against."""

    setup: WorkloadSetup
    folder: str
    prepared: Prepared | None
    reason: str = ""
    """Why there is nothing to hold against."""

    @property
    def mode(self) -> Mode:
        """Which mode."""
        return self.setup.mode


@dataclass(kw_only=True)
class BackendVerification:
    """One backend."""

    backend: str
    courses: Sequence[Course]
    steps: int
    open_session: Callable[[], VerifySession]
    limits: Limits
    tell: Tell
    checks: list[CheckRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    curve: CurveRecord | None = None
    blame: BlameRecord | None = None

    def run(self) -> BackendRecord:
        """Try everything."""
        for course in self.courses:
            self._course(course)
        names = [x.prepared.workload for x in self.courses if x.prepared is not None]
        workload = names[0] if names else self.courses[0].setup.workload
        return BackendRecord(
            backend=self.backend,
            passed=all(x.status == "right" for x in self.checks),
            sentence=verdict(self.backend, workload, self.checks, self.blame, self.steps),
            checks=tuple(self.checks),
            curve=self.curve,
            blame=self.blame,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _course(self, course: Course) -> None:
        prepared = course.prepared
        if prepared is None:
            unproven: Status = "unproven"
            self.checks.append(
                CheckRecord(mode=course.mode, check="first", status=unproven, reason=course.reason)
            )
            return
        failed: tuple[Situation, Judged] | None = None
        with self.open_session() as session:
            for number, situation in enumerate(prepared.situations):
                self._say(course, f"{course.mode}: {situation.name}")
                how = self._judged(session, course, self.backend, situation)
                self.checks += self._rows(course, situation, how, prepared.usual_graphs[number])
                if failed is None and _status(how) in FAILURES:
                    failed = (situation, how)
                if situation.kind == "first" and how.status in _ENDS_IT:
                    self._skip(course, prepared.situations[1:])
                    break
            else:
                self._train(session, course, prepared)
        if failed is not None:
            with self.open_session() as session:  # torch's own first: what runs there does no harm
                self._attribute(session, course, *failed)
                self._look(session, course, *failed)

    def _rows(
        self, course: Course, situation: Situation, how: Judged, usual: int | None
    ) -> list[CheckRecord]:
        self.notes += how.notes
        if how.breaks and situation.kind == "first":
            self.notes.append(f"{course.mode}: {counted(how.breaks, 'graph break')}")
        first = "forward" if situation.kind == "first" else situation.name
        if not how.parts:
            row = CheckRecord(mode=course.mode, check=first, status=how.status, reason=how.reason)
            return [row]
        if usual is not None and how.graphs > usual:
            self.notes.append(
                f"{course.mode}, {situation.name}: {counted(how.graphs, 'graph')} compiled, where "
                f"Dynamo alone compiles {usual}: the backend made a size a constant"
            )
        return [
            CheckRecord(
                mode=course.mode,
                check=part.check,
                status=part.status,
                reason=part.reason,
                proof=part.proof,
                graphs=how.graphs if number == 0 else None,
                usual_graphs=usual if number == 0 else None,
            )
            for number, part in enumerate(how.parts)
        ]

    def _skip(self, course: Course, situations: Sequence[Situation]) -> None:
        reason = "the first call did not come to an end"
        self.checks += [
            CheckRecord(mode=course.mode, check=x.name, status="not_tried", reason=reason)
            for x in situations
        ]

    def _train(self, session: VerifySession, course: Course, prepared: Prepared) -> None:
        """Train freely, for the reader."""
        if not prepared.true_losses:
            return
        request = Train(
            setup=course.setup,
            folder=course.folder,
            digest=prepared.digest,
            backend=self.backend,
            steps=self.steps,
            learning_rate=prepared.learning_rate,
        )
        try:
            reply = session.ask(request, timeout_s=self.limits.check_s)
        except NoReply as error:
            status, reason = error.status, error.reason
            self.checks.append(
                CheckRecord(mode=course.mode, check="training", status=status, reason=reason)
            )
            return
        assert isinstance(reply, Trained)
        self.curve = CurveRecord(
            steps=self.steps,
            learning_rate=prepared.learning_rate,
            eager=prepared.eager_losses,
            truth=prepared.true_losses,
            backend=reply.losses,
            drift=reply.drift,
        )

    def _attribute(
        self, session: VerifySession, course: Course, situation: Situation, how: Judged
    ) -> None:
        """Put what failed to the rungs below, and charge the first that fails alike."""
        further = (how.hands_on_to,) if how.hands_on_to not in {"", self.backend} else ()
        below: dict[str, Status] = {}
        charged = ""
        for rung in references_below(self.backend, further):
            self._say(course, f"{course.mode}: {situation.name} with {rung}")
            one = self._judged(session, course, rung, situation)
            below[rung] = _status(one)
            if _alike(how, one):
                charged = rung
                break
        name = situation.name
        self.checks = [
            msgspec.structs.replace(x, rungs=below, charged_to=charged)
            if x.mode == course.mode and x.status in FAILURES and _belongs(x.check, name)
            else x
            for x in self.checks
        ]

    def _look(
        self, session: VerifySession, course: Course, situation: Situation, how: Judged
    ) -> None:
        """Look for the first module that is wrong, once: of the first check that failed."""
        if self.blame is not None or not self.limits.blame_s or course.prepared is None:
            return
        if how.status == "not_compiled":
            return
        worst = _worst(how)
        search = Search(
            session,
            setup=course.setup,
            folder=course.folder,
            digest=course.prepared.digest,
            backend=self.backend,
            situation=situation,
            check=worst.check if worst is not None else situation.name,
            seconds=self.limits.blame_s,
            question_s=self.limits.check_s,
            tell=lambda text: self._say(course, text),
        )
        self.blame = search.run()

    def _judged(
        self, session: VerifySession, course: Course, backend: str, situation: Situation
    ) -> Judged:
        assert course.prepared is not None
        request = Prove(
            setup=course.setup,
            folder=course.folder,
            digest=course.prepared.digest,
            backend=backend,
            situation=situation,
        )
        return judged(session, request, timeout_s=self.limits.check_s)

    def _say(self, course: Course, text: str) -> None:
        self.tell(course.setup.workload, self.backend, text)


def _status(how: Judged) -> Status:
    worst = _worst(how)
    return how.status if worst is None else worst.status


def _worst(how: Judged) -> Part | None:
    wrong = (x for x in how.parts if x.status != "right")
    return next(wrong, how.parts[0] if how.parts else None)


def _alike(how: Judged, other: Judged) -> bool:
    """Whether two failed in the same way: the same kind of fault, or the same words."""
    if _status(how) != _status(other):
        return False
    mine, theirs = _worst(how), _worst(other)
    if mine is None or theirs is None:
        return how.status != "failed" or _words(how.reason) == _words(other.reason)
    return mine.proof.kind == theirs.proof.kind


def _words(reason: str) -> str:
    """Return a reason without its numbers: those of symbols and nodes differ between graphs."""
    return re.sub(r"\d+", "", reason)


def _belongs(check: str, situation: str) -> bool:
    is_first = not check.startswith(("step ", "batch "))
    return is_first if situation == "first" else check == situation
