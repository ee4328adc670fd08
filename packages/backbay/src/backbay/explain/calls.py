"""What was seen of calls, one after the other: what an explanation is put together from."""

from dataclasses import dataclass, field

from backbay import compile_log
from backbay.explain.record import ProblemRecord
from backbay.explain.watching import Watch


@dataclass(kw_only=True)
class Calls:
    """Calls that were watched: of a workload, or the steps of a loop."""

    watch: Watch = field(default_factory=Watch)
    names: list[str] = field(default_factory=list)
    """Of the calls that were made."""
    problems: dict[int, ProblemRecord] = field(default_factory=dict)
    """By call; the model itself, uncompiled, is ``-1``."""
    notes: list[str] = field(default_factory=list)
    fell: list[compile_log.Record] = field(default_factory=list)
    """Where something else ran than the backend that was asked for."""

    def log(self, records: list[compile_log.Record]) -> None:
        """Note what the compile log has of these calls."""
        self.notes += (f"rewrites {x.why}" for x in records if x.timed)
        self.fell += (x for x in records if x.fell_back)
