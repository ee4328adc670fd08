"""How a case's results are held against eager's: here, or by a judge in another process.

A case is a function: it asks for references and hands over what the backend gave, each time with
*how* that is to be judged. The same function runs in two processes. In the judge's, where no
backend is loaded, the program is not compiled: that run makes the references, and leaves the ways
to judge. In the backend's, nothing is compared: what the backend gave is handed on.

So a case asks the same in both: in one thread, in the same order, and as often.
"""

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backbay.errors import ProofImpossible
from backbay.proof import Golden, evidence
from backbay.proof.golden import proof_context
from backbay_conformance.answers_record import Given, Opening
from backbay_conformance.case import EagerUnstable, Failed, NotRunnable
from backbay_conformance.record import Status
from backbay_conformance.travelling import NotPortableError, packed, unpacked

How = Callable[[Any], None]
"""Raises Failed if what a backend gave is not right."""
MakeGolden = Callable[[], Golden]

_UNHANDED = "it handed on {given} of {asked} results"
_UNASKED = "uncompiled, the case has {asked} results, and not {given}: nothing judges the others"


@dataclass(frozen=True)
class Sealed:
    """A golden that another process has."""

    opening: Opening

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Be in the state that a candidate must be compiled and observed in."""
        return proof_context(
            draws_random=self.opening.draws_random, math_attention=self.opening.math_attention
        )


Reference = Golden | Sealed


class Answers(Protocol):
    """What becomes of a case's results."""

    compiles: bool
    """Whether what is compiled is."""
    sample: int
    """Which sample is being asked."""

    def golden(self, make: MakeGolden) -> Reference:
        """Return a golden, or the seal of one.

        Raises:
            CaseError: there is none.
        """

    def answer(self, value: Any, how: How) -> None:
        """Take what a backend gave.

        Raises:
            Failed: it was judged here, and is not right.
        """


class JudgedHere:
    """Results are judged where they are computed: nothing keeps the judged from judging."""

    compiles = True
    sample = 0

    def golden(self, make: MakeGolden) -> Reference:
        """Make a golden."""
        return make()

    def answer(self, value: Any, how: How) -> None:
        """Judge what a backend gave."""
        how(value)


class HandedOn:
    """Results are handed on, and nothing is said of them."""

    compiles = True

    def __init__(self, openings: Sequence[Sequence[Opening]]) -> None:
        self.sample = 0
        self.given: list[Given] = []
        self.tensors: dict[str, Any] = {}
        self._openings = [list(x) for x in openings]

    def golden(self, make: MakeGolden) -> Reference:  # noqa: ARG002 (the judge makes it)
        """Return the seal of the next golden.

        Raises:
            CaseError: the judge has none.
        """
        here = self._openings[self.sample] if self.sample < len(self._openings) else []
        if not here:
            raise NotRunnable("uncompiled, the case does not come as far as it does compiled")
        opening = here.pop(0)
        if opening.ended == "eager_unstable":
            raise EagerUnstable(opening.reason)
        if opening.ended is not None:
            raise NotRunnable(opening.reason)
        return Sealed(opening)

    def answer(self, value: Any, how: How) -> None:  # noqa: ARG002 (the judge has its own)
        """Keep what a backend gave, for the judge.

        Raises:
            NotRunnable: it can't be handed on.
        """
        try:
            structure = packed(value, self.tensors)
        except NotPortableError as error:
            raise NotRunnable(f"what it gives can't be handed to a judge: {error}") from error
        self.given.append(Given(sample=self.sample, value=structure))


class Referring:
    """The judge's own run of a case: what it is that others are held against."""

    def __init__(self, *, compiles: bool) -> None:
        self.compiles = compiles
        self.sample = 0
        self.openings: dict[int, list[Opening]] = defaultdict(list)
        self.ways: dict[int, list[How]] = defaultdict(list)

    def golden(self, make: MakeGolden) -> Reference:
        """Make a golden, and note what others must know of it."""
        try:
            golden = make()
        except (NotRunnable, EagerUnstable) as error:
            self._end(error.status, error.reason)
            raise
        except ProofImpossible as error:
            self._end("not_runnable", str(error))
            raise
        self.openings[self.sample].append(
            Opening(draws_random=golden.draws_random, math_attention=golden.math_attention)
        )
        return dataclasses.replace(golden, eager=evidence.portable(golden.eager))

    def answer(self, value: Any, how: How) -> None:  # noqa: ARG002 (it is eager's)
        """Keep how results of others are to be judged."""
        self.ways[self.sample].append(how)

    def judge(self, given: Sequence[Given], tensors: dict[str, Any], *, whole: bool) -> None:
        """Judge what a backend gave.

        Args:
            given: the results, in their order.
            tensors: those that belong to them.
            whole: whether the case came to its end, so that nothing may be missing.

        Raises:
            Failed: something is not right, or missing; where there are samples, the first.
            NotRunnable: there is more than there are ways to judge.
        """
        failed: dict[int, Failed] = {}
        for sample, ways in self.ways.items():
            here = [x for x in given if x.sample == sample]
            found = _first_failure(here, ways, tensors)
            if found is None and len(here) > len(ways):
                raise NotRunnable(_UNASKED.format(given=len(here), asked=len(ways)))
            if found is None and whole and len(here) < len(ways):
                said = _UNHANDED.format(given=len(here), asked=len(ways))
                found = Failed("fail_behaviour", said)
            if found is not None:
                failed[sample] = found
        if not failed:
            return
        number = min(failed)
        worst = failed[number]
        if len(self.ways) == 1:
            raise worst
        count = f"{len(failed)} of {len(self.ways)} samples, the first is number {number}"
        raise Failed(worst.status, f"{count}: {worst.reason}")

    @property
    def asked(self) -> int:
        """How many results are asked for."""
        return sum(map(len, self.ways.values()))

    def _end(self, status: Status, reason: str) -> None:
        self.openings[self.sample].append(Opening(ended=status, reason=reason))


def _first_failure(
    given: Sequence[Given], ways: Sequence[How], tensors: dict[str, Any]
) -> Failed | None:
    try:
        for one, how in zip(given, ways, strict=False):
            how(_unpacked(one, tensors))
    except Failed as error:
        return error
    return None


def _unpacked(given: Given, tensors: dict[str, Any]) -> Any:
    try:
        return unpacked(given.value, tensors)
    except evidence.InvalidEvidence as error:
        raise Failed("fail_metadata", f"what it handed on can't be read: {error}") from error
