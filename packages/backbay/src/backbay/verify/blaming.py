"""Which module diverges first? Each is compiled by itself, from the model down to the innermost.

A module is judged on the inputs that it gets in eager, so that what went wrong before it does not
count. Of the modules that one calls, the first that is wrong is looked into. Where none is, it is
the module's own operators; or, if those alone are right too, what the compiler does across its
modules: then they are compiled one more at a time, until it is wrong.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from backbay.decisions import Arm
from backbay.session import NoReply
from backbay.verify.judging import Judge, Judged, judged
from backbay.verify.record import FAILURES, BlameRecord
from backbay.verify.requests import Alone, Call, Course, Situation, VerifySession
from backbay.verify.wording import blamed

_LEAST_S = 15.0
"""A question is given at least this long: a child must start, and import torch, to answer it."""
_SHARE = 3
"""...and at most this share of what is left, as a divisor: one hang must not take all of it."""

Found = Literal["alone", "own", "between", "not_found"]


class OutOfTime(Exception):  # noqa: N818 (what ended the search)
    """The limit was reached."""


@dataclass(kw_only=True)
class Search:
    """The search for what is to blame for one failed check of one backend."""

    session: VerifySession
    judge: Judge
    course: Course
    arm: Arm
    situation: Situation
    check: str
    seconds: float
    question_s: float
    tell: Callable[[str], None]
    _end: float = field(default=0.0, init=False)
    _calls: dict[str, Call] = field(default_factory=dict, init=False)
    _tried: int = field(default=0, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def run(self) -> BlameRecord:
        """Search, until it is found or time is out."""
        self._end = time.monotonic() + self.seconds
        try:
            self._calls = {x.module: x for x in self._called()}
            whole = self._alone("")
            if whole.status in FAILURES:
                return self._within("", whole)
            how = "right" if whole.status == "right" else f"{whole.status} ({whole.reason})"
            why = f"the model itself is {how} when compiled anew"
        except OutOfTime:
            why = "the time for it ran out"
        return self._blame("not_found", "", Judged(status="unproven", reason=why))

    def _within(self, path: str, how: Judged) -> BlameRecord:
        """Look into a module that is wrong."""
        inner = self._first_wrong(path)
        if inner is not None:
            return inner
        children = self._children(path)
        if not children:
            return self._blame("alone", path, how)
        own = self._alone(path, eager=children)
        if own.status in FAILURES and own.status != "not_compiled":
            return self._blame("own", path, own)
        last, together = self._boundary(path, children, how)
        return self._blame("between", path, together, last=last)

    def _first_wrong(self, path: str) -> BlameRecord | None:
        for child in self._children(path):
            how = self._alone(child)
            if how.status in FAILURES and how.status != "not_compiled":
                return self._within(child, how)
            if how.status == "unproven":
                self._notes.append(f"{child} could not be tried: {how.reason}")
                inner = self._first_wrong(child)
                if inner is not None:
                    return inner
        return None

    def _boundary(self, path: str, children: Sequence[str], how: Judged) -> tuple[str, Judged]:
        """Return the first child that must be compiled with those before it, for it to be wrong."""
        low, high, found = 0, len(children), how
        while high - low > 1:  # wrong with the first `high` compiled, right with the first `low`
            middle = (low + high) // 2
            one = self._alone(path, eager=children[middle:])
            if one.status in FAILURES and one.status != "not_compiled":
                high, found = middle, one
            else:
                low = middle
        return children[high - 1], found

    def _children(self, path: str) -> tuple[str, ...]:
        return tuple(x.module for x in self._calls.values() if x.caller == path)

    def _called(self) -> Sequence[Call]:
        try:
            return self.judge.called(self.course, self._left())
        except NoReply as error:
            self._notes.append(f"the model's modules could not be listed: {error.reason}")
            raise OutOfTime from error

    def _alone(self, path: str, eager: Sequence[str] = ()) -> Judged:
        left = self._left()
        self._tried += 1
        self.tell(f"compiling {path or 'the model'} alone")
        limit = min(self.question_s, max(_LEAST_S, left / _SHARE))
        prepared = self.judge.prepare_alone(self.course, self.situation, path, limit)
        if prepared.unproven:
            return Judged(status="unproven", reason=prepared.unproven)
        request = Alone(
            course=self.course,
            arm=self.arm,
            situation=self.situation,
            module=path,
            eager=tuple(eager),
            prepared=prepared,
            path=self.judge.place(),
        )
        return judged(
            self.session,
            request,
            lambda: self.judge.weighed_alone(self.course, self.situation, request.path),
            timeout_s=limit,
        )

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def _blame(self, found: Found, path: str, how: Judged, *, last: str = "") -> BlameRecord:
        call = self._calls.get(path)
        record = BlameRecord(
            mode=self.course.setup.mode,
            check=self.check,
            found=found,
            module=path,
            type=call.type if call else "",
            forward=call.forward if call else "",
            called_at=call.called_at if call else "",
            last=last,
            status=how.status,
            reason=how.reason,
            proof=how.worst.proof if how.worst is not None else None,
            tried=self._tried,
            notes=tuple(self._notes),
            sentence="",
        )
        return msgspec.structs.replace(record, sentence=blamed(record))
