"""The calls of a backend that are judged: how many, with what, and where. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backbay.judge.client import secret
from backbay.judge.requests import Piece


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One call that is judged."""

    inputs: int
    """Which set of inputs it is called with; the workload's own is 0."""
    fresh: bool = False
    """Whether the inputs are at other addresses than in other calls."""

    def what(self, number: int) -> str:
        """Word which call it is."""
        values = "new values" if self.inputs else "the workload's own values"
        where = "other addresses" if self.fresh else "the same addresses"
        return f"in call {number}, {values} at {where}" if number > 1 else "in the first call"


CALLS = (
    *(Planned(inputs=0), Planned(inputs=0)),  # one compiles, one is warm
    *(Planned(inputs=1), Planned(inputs=0, fresh=True), Planned(inputs=2)),
    *(Planned(inputs=0), Planned(inputs=1, fresh=True), Planned(inputs=2)),
    *(Planned(inputs=1), Planned(inputs=0), Planned(inputs=2, fresh=True)),
)
"""What is kept by address, by shape, by number of calls or in one buffer is wrong in one of them.
Of faults that occur in one call in N, that many calls find 1 - (1 - 1/N)^11. In a race three more
that are timed, and one afterwards, are judged as well."""


def pieces(
    *,
    seeds: Sequence[int],
    row: Sequence[int],
    call: Callable[[int, bool], object],
    call_row: Callable[[Sequence[int]], object],
    hand: Callable[[int | None], str],
    first: int = 1,
) -> list[Piece]:
    """Have a backend called as planned, and return what each call gave.

    Args:
        seeds: of each set of inputs that there is, what the elements are drawn from that are handed
            on; 0 is a secret of the moment.
        row: which sets two calls in a row have; none if they are not judged.
        call: calls it with a set of inputs, at other addresses or not.
        call_row: calls it with some sets, each time from the state that the last call left.
        hand: has what the last call gave written to a file, all of it or elements that are drawn,
            and returns its path.
        first: which of the planned calls is the first one that is made, counted from 1.
    """
    found: list[Piece] = []
    for number, planned in enumerate(CALLS[first - 1 :], first):
        inputs = planned.inputs if planned.inputs < len(seeds) else 0
        call(inputs, planned.fresh)
        # All of it once: later, what is drawn after the call was made is enough, for whoever is
        # judged can't know which it will be.
        picked = None if number == 1 else seeds[inputs] or secret()
        what = planned.what(number)
        found.append(Piece(path=hand(picked), inputs=inputs, what=what, picked=picked))
    if row:
        call_row(row)
        picked, what = secret(), "in two calls in a row"
        found.append(Piece(path=hand(picked), inputs=0, what=what, picked=picked, row=True))
    return found
