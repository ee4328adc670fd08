"""What is asked of the processes that run cases, and what they reply. No torch."""

import msgspec

from backbay.session import Service
from backbay_conformance.fuzz.program import Program
from backbay_conformance.record import Profile, Result


class SuiteSetup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """What is tested, and how; comes first."""

    backend: str
    """A registered name, ``module:attribute`` or ``file.py:attribute``."""
    device: str
    seed: int
    levels: tuple[int, ...]
    profile: Profile
    only: tuple[str, ...] = ()
    all_samples: bool = False


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The backend was loaded, and the cases are known."""

    cases: tuple[tuple[str, float], ...]
    """Id and time limit in seconds of each case to run, in order."""
    rungs: tuple[str, ...]
    """Torch's backends below it, the lowest first."""
    known: tuple[str, ...]
    """Ids of every case of the levels, chosen or not."""
    device_name: str


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run one case."""

    id: str
    rung: str | None = None
    """A rung's name, or the backend under test."""
    program: Program | None = None
    """What is run instead of the collected case: a program of the fuzzer's, made smaller."""


class Show(msgspec.Struct, frozen=True, kw_only=True, tag="show"):
    """Asks which program a seed of the fuzzer names."""

    seed: int


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown"):
    """It is this one."""

    program: Program


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """What became of it."""

    result: Result


Request = SuiteSetup | Run | Show
Reply = Ready | Ran | Shown

SERVICE = Service[Request, Reply](
    "backbay_conformance.handler:handler_of_child", {SuiteSetup: Ready, Run: Ran, Show: Shown}
)
