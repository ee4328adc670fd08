"""The calls of a backend that are judged: how many, with what, and where. No torch here."""

from dataclasses import dataclass


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
