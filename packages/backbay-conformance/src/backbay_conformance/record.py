"""What a run of the suite says, as data; ``backbay conform --json`` prints it. No torch here."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self, get_args

import msgspec

from backbay.reporting.machine import Machine

SUITE_VERSION = 6
"""Raised when a case is added, removed or changed: statements of two versions do not compare."""
SCHEMA = "backbay.conform/2"

Status = Literal[
    "pass",
    "fail_value",
    "fail_metadata",
    "fail_mutation",
    "fail_grad",
    "fail_error",
    "fail_behaviour",
    "lost_validation",
    "crash",
    "hang",
    "vacuous",
    "unsupported",
    "upstream",
    "eager_unstable",
    "not_runnable",
]
"""What became of one case. The list is closed:

- ``pass``: right, and the backend was shown to have run.
- ``fail_value``: a wrong number. ``fail_metadata``: a wrong shape, dtype, stride or structure, or
  memory shared or not where eager's is otherwise. ``fail_mutation``: something was changed that
  eager leaves, or left that eager changes. ``fail_grad``: a wrong gradient, or none.
- ``fail_error``: it raised. ``fail_behaviour``: the results are right and something else is not:
  compiled too often, global state left changed, an option that is ignored.
- ``lost_validation``: eager raises for this input, and the backend's code does not.
- ``crash``: the process died. ``hang``: no answer within the time limit.
- ``vacuous``: nothing was wrong, and nothing shows that the backend ran.
- ``unsupported``: the backend declares that it does not take this.
- ``upstream``: a reference backend fails in the same way, so the fault is torch's.
- ``eager_unstable``: two eager runs differ, so there is nothing to compare with.
- ``not_runnable``: the case cannot be run here with any backend.
"""
STATUSES: tuple[Status, ...] = get_args(Status)
FAILURES: frozenset[Status] = frozenset(
    x for x in STATUSES if x.startswith("fail_") or x in {"lost_validation", "crash", "hang"}
) | {"vacuous"}
"""What is held against a backend."""
UNTRIED: frozenset[Status] = frozenset({"unsupported", "eager_unstable", "not_runnable"})
"""What says nothing of a backend."""

LEVELS: tuple[str, ...] = (
    "load",
    "contract",
    "ops",
    "dtypes",
    "training",
    "shapes",
    "context",
    "errors",
    "properties",
    "programs",
    "honesty",
)
"""Names of the levels; the position is the number."""

Profile = Literal["quick", "full"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one case."""

    id: str
    """``level/family/...``: the same in every version of the suite that has the case."""
    level: int
    status: Status
    reason: str = ""
    """One line; empty for a pass."""
    reference_backends: dict[str, Status] = {}
    """Of a failure: what became of the case on each reference backend, in order."""
    seconds: float = 0.0
    judged: int = 0
    """How many of its results were judged where the backend was not loaded. What is not among them,
    such as memory that is shared, what is raised or how often something was compiled, is seen where
    the backend ran, and nobody else can say so."""
    expected: str = ""
    """Why the expectations file says that this status is expected; empty where it says nothing."""

    @property
    def failed(self) -> bool:
        """Whether it is held against the backend."""
        return self.status in FAILURES and not self.expected


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One level's counts."""

    level: int
    name: str
    counts: dict[Status, int]
    expected: int = 0
    """Failures among them that the expectations file explains."""
    seconds: float = 0.0
    """Sum over the cases; they may have run side by side."""

    @classmethod
    def of(cls, level: int, results: Sequence[Result]) -> Self:
        """Count a level's results; those of other levels are passed over."""
        here = [x for x in results if x.level == level]
        return cls(
            level=level,
            name=LEVELS[level],
            counts=dict(Counter(x.status for x in here).most_common()),
            expected=sum(bool(x.expected) for x in here if x.status in FAILURES),
            seconds=sum(x.seconds for x in here),
        )

    @property
    def failed(self) -> int:
        """How many are held against the backend."""
        return sum(x for status, x in self.counts.items() if status in FAILURES) - self.expected

    @property
    def passed(self) -> int:
        """How many passed."""
        return self.counts.get("pass", 0)

    @property
    def tried(self) -> int:
        """How many say anything of the backend, or of torch below it."""
        return sum(x for status, x in self.counts.items() if status not in UNTRIED)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: what was tested, where, with what, and what became of it."""

    schema: str = SCHEMA
    suite_version: int = SUITE_VERSION
    created: str
    """UTC, ISO 8601."""
    backend: str
    origin: str
    """Who provides it, in words."""
    profile: str
    """``quick``, ``full``, ``fuzz``, or ``chosen`` where single cases or levels were asked for."""
    device: str
    seed: int
    samples: str = "first"
    """``first`` or ``all`` samples of each operator."""
    machine: Machine
    versions: dict[str, str]
    seconds: float
    """From the first case to the last, by the clock."""
    levels: tuple[LevelSummary, ...]
    results: tuple[Result, ...]
    stale: tuple[str, ...] = ()
    """Lines of the expectations file that match no case, or whose case now passes."""
    isolation: Literal["process", "in_process"] = "process"
    """``in_process`` where the backend ran in the process of who asked: cheats and crashes are not
    contained then."""
    partial: bool = False
    """Whether it was interrupted: cases are missing."""
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is held against the backend, and the expectations file is true."""
        return not (self.partial or self.stale or any(x.failed for x in self.results))

    @property
    def badge(self) -> int | None:
        """The highest level up to which nothing failed; None if level 0 did, or was not run."""
        reached = None
        for summary in self.levels:
            if summary.level != (0 if reached is None else reached + 1) or summary.failed:
                break
            reached = summary.level
        return reached
