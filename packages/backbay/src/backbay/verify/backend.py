"""Puts one backend through every situation of every mode, and what fails to torch's own below it.

Nothing here touches torch: that happens in sessions. A backend that raises, dies or hangs is a row
with its reason.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from backbay.decisions import Arm
from backbay.judge.calls import pieces
from backbay.reference_backends import references_below
from backbay.reporting.wording import counted
from backbay.session import NoReply
from backbay.verify.blaming import Search
from backbay.verify.judging import Judge, Judged, judged
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
    Again,
    AgainInARow,
    Course,
    Finish,
    Finished,
    Hand,
    Prepared,
    Prove,
    Reply,
    Request,
    Situation,
    Train,
    Trained,
    VerifySession,
)
from backbay.verify.wording import verdict
from backbay.workloads.setup import Mode

Tell = Callable[[str, str, str], None]
"""Called with workload, backend and what is going on."""

_ENDS_IT: frozenset[Status] = frozenset({"failed", "crashed", "timeout", "not_compiled"})
"""What leaves nothing to try: the model does not run compiled at all."""


@dataclass(frozen=True)
class Unproven:
    """One mode in which there is nothing to hold a backend against."""

    course: Course
    reason: str


@dataclass(kw_only=True)
class BackendVerification:
    """One backend."""

    arm: Arm
    workload: str
    courses: Sequence[Prepared | Unproven]
    judge: Judge
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
        for one in self.courses:
            mode = one.course.setup.mode
            if isinstance(one, Prepared):
                self._try(one)
            else:
                self.checks.append(
                    CheckRecord(mode=mode, check="first", status="unproven", reason=one.reason)
                )
        return self.record()

    def record(self, *, interrupted: bool = False) -> BackendRecord:
        """Return what was found; who was interrupted has not passed."""
        sentence = verdict(str(self.arm), self.workload, self.checks, self.blame, self.steps)
        if interrupted:
            made = counted(len(self.checks), "check")
            sentence = f"{self.arm} on {self.workload}: interrupted after {made}"
        return BackendRecord(
            backend=self.arm.backend,
            passed=not interrupted and all(x.status == "right" for x in self.checks),
            sentence=sentence,
            checks=tuple(self.checks),
            curve=self.curve,
            blame=self.blame,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _try(self, prepared: Prepared) -> None:
        mode = prepared.course.setup.mode
        failed: tuple[Situation, Judged] | None = None
        with self.open_session() as session:
            for number, situation in enumerate(prepared.situations):
                self._say(prepared, f"{mode}: {situation.name}")
                how = self._judged(session, prepared, self.arm, situation)
                self.checks += self._rows(mode, situation, how, prepared.usual_graphs[number])
                if failed is None and how.status in FAILURES:
                    failed = (situation, how)
                if situation.kind == "first" and how.status in _ENDS_IT:
                    reason = "the first call did not come to an end"
                    if how.status == "not_compiled":
                        reason = "nothing was compiled"
                    self.checks += [
                        CheckRecord(mode=mode, check=x.name, status="not_tried", reason=reason)
                        for x in prepared.situations[1:]
                    ]
                    break
            else:
                self._train(session, prepared)
        if failed is not None:
            with self.open_session() as session:  # the backend is not loaded there
                self._attribute(session, prepared, *failed)
            with self.open_session() as session:
                self._look(session, prepared, *failed)

    def _rows(
        self, mode: Mode, situation: Situation, how: Judged, usual: int | None
    ) -> list[CheckRecord]:
        self.notes += how.notes
        if how.breaks and situation.kind == "first":
            self.notes.append(f"{mode}: {counted(how.breaks, 'graph break')}")
        if not how.checks:
            first = "forward" if situation.kind == "first" else situation.name
            return [CheckRecord(mode=mode, check=first, status=how.status, reason=how.reason)]
        if usual is not None and how.graphs > usual:
            self.notes.append(
                f"{mode}, {situation.name}: {counted(how.graphs, 'graph')} compiled, where "
                f"Dynamo alone compiles {usual}: the backend made a size a constant"
            )
        first_check, *others = how.checks
        return [
            msgspec.structs.replace(first_check, graphs=how.graphs, usual_graphs=usual),
            *others,
        ]

    def _train(self, session: VerifySession, prepared: Prepared) -> None:
        """Train freely, for the reader."""
        if not prepared.true_losses:
            return
        request = Train(
            course=prepared.course,
            arm=self.arm,
            steps=self.steps,
            learning_rate=prepared.learning_rate,
            path=self.judge.place(),
        )
        try:
            reply = session.ask(request, timeout_s=self.limits.check_s)
            drift = self.judge.drift(prepared.course, request.path)
        except NoReply as error:
            mode, status = prepared.course.setup.mode, error.status
            self.checks.append(
                CheckRecord(mode=mode, check="training", status=status, reason=error.reason)
            )
            return
        assert isinstance(reply, Trained)
        self.curve = CurveRecord(
            steps=self.steps,
            learning_rate=prepared.learning_rate,
            eager=prepared.eager_losses,
            truth=prepared.true_losses,
            backend=reply.losses,
            drift=drift,
        )

    def _attribute(
        self, session: VerifySession, prepared: Prepared, situation: Situation, how: Judged
    ) -> None:
        """Run what failed on the reference backends; attribute it to the first that fails alike."""
        further = (how.hands_on_to,) if how.hands_on_to not in {"", self.arm.backend} else ()
        mode, name = prepared.course.setup.mode, situation.name
        below: dict[str, Status] = {}
        attributed_to = ""
        for reference in references_below(self.arm.backend, further):
            self._say(prepared, f"{mode}: {name} with {reference}")
            one = self._judged(session, prepared, Arm(backend=reference), situation)
            below[reference] = one.status
            if _alike(how, one):
                attributed_to = reference
                break
        for number, check in enumerate(self.checks):
            is_first = not check.check.startswith(("calls", "step ", "batch "))
            belongs = is_first if situation.kind == "first" else check.check == name
            if check.mode == mode and check.status in FAILURES and belongs:
                self.checks[number] = msgspec.structs.replace(
                    check, reference_backends=below, attributed_to=attributed_to
                )

    def _look(
        self, session: VerifySession, prepared: Prepared, situation: Situation, how: Judged
    ) -> None:
        """Look for the first module that is wrong, once: of the first check that failed."""
        if self.blame is not None or not self.limits.blame_s or how.status == "not_compiled":
            return
        if situation.kind == "calls":
            return  # a module alone is called once
        search = Search(
            session=session,
            judge=self.judge,
            course=prepared.course,
            arm=self.arm,
            situation=situation,
            check=how.worst.check if how.worst is not None else situation.name,
            seconds=self.limits.blame_s,
            question_s=self.limits.check_s,
            tell=lambda text: self._say(prepared, text),
        )
        try:
            self.blame = search.run()
        finally:
            self.judge.rest()

    def _judged(
        self, session: VerifySession, prepared: Prepared, arm: Arm, situation: Situation
    ) -> Judged:
        """Have a backend run in one situation, and what it gives judged."""
        if situation.kind == "calls":
            return self._judged_calls(session, prepared, arm, situation)
        course = prepared.course
        request = Prove(course=course, arm=arm, situation=situation, path=self.judge.place())
        return judged(
            session,
            request,
            lambda: self.judge.weighed(course, situation, request.path),
            timeout_s=self.limits.check_s,
        )

    def _judged_calls(
        self, session: VerifySession, prepared: Prepared, arm: Arm, situation: Situation
    ) -> Judged:
        """Have a backend called again and again, within the time of one check."""
        deadline = time.monotonic() + self.limits.check_s
        course = prepared.course

        def ask(request: Request) -> Reply:
            return session.ask(request, timeout_s=max(0.1, deadline - time.monotonic()))

        def file(inputs: int) -> str | None:
            return self.judge.reveal(course, inputs) if inputs else None

        def call(inputs: int, fresh: bool) -> None:
            ask(Again(course=course, arm=arm, inputs=file(inputs), fresh=fresh))

        def call_row(row: Sequence[int]) -> None:
            ask(AgainInARow(course=course, arm=arm, inputs=tuple(map(file, row))))

        def hand(picked: int | None) -> str:
            path = self.judge.place()
            ask(Hand(course=course, arm=arm, path=path, picked=picked))
            return path

        try:
            given = pieces(
                seeds=prepared.seeds,
                row=prepared.row,
                call=call,
                call_row=call_row,
                hand=hand,
                first=2,  # the situation before this one was the first
            )
            finished = ask(Finish(course=course, arm=arm))
            assert isinstance(finished, Finished)
            check = self.judge.weighed_calls(course, situation, given)
        except NoReply as error:
            return Judged(status=error.status, reason=error.reason)
        if finished.fault and check.status == "right":
            check = msgspec.structs.replace(
                check, status="wrong", reason=finished.fault, proof=None
            )
        return Judged(
            checks=(check,), status=check.status, reason=check.reason, notes=finished.notes
        )

    def _say(self, prepared: Prepared, text: str) -> None:
        self.tell(prepared.course.setup.workload, str(self.arm), text)


def _alike(how: Judged, other: Judged) -> bool:
    """Whether two failed in the same way: the same kind of fault, or the same words."""
    if how.status != other.status:
        return False
    mine, theirs = (x.worst.proof if x.worst is not None else None for x in (how, other))
    if mine is not None and theirs is not None:
        return mine.kind == theirs.kind
    # Without numbers: those of symbols and nodes differ between graphs.
    reasons = {re.sub(r"\d+", "", x.reason) for x in (how, other)}
    return how.status != "failed" or len(reasons) == 1
