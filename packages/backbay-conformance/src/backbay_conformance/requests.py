"""What is asked of the processes that run cases, and what they reply. No torch."""

import msgspec

from backbay.registry import Traits
from backbay.session import Service
from backbay_conformance.answers_record import Given, Opening
from backbay_conformance.fuzz.program import Program
from backbay_conformance.record import Profile, Result, Status


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
    judges: bool = False
    """Whether the process judges: then the backend is not loaded."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The backend was loaded, and the cases are known."""

    cases: tuple[tuple[str, float], ...]
    """Id and time limit in seconds of each case to run, in order."""
    reference_backends: tuple[str, ...]
    """Torch's backends below it, the lowest first."""
    known: tuple[str, ...]
    """Ids of every case of the levels, chosen or not."""
    device_name: str
    traits: Traits
    """What the backend declares."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run one case."""

    id: str
    reference: str | None = None
    """A reference backend, or the backend under test."""
    program: Program | None = None
    """What is run instead of the collected case: a program of the fuzzer's, made smaller."""
    openings: tuple[tuple[Opening, ...], ...] | None = None
    """Of each sample, what is known of its goldens; ``null``: the results are judged where they
    are computed."""
    path: str = ""
    """Of the file to write tensors to, where they are handed on."""


class Refer(msgspec.Struct, frozen=True, kw_only=True, tag="refer"):
    """Run one case uncompiled, for its goldens and for how results are to be judged."""

    id: str
    program: Program | None = None
    traits: Traits
    """Of the backend that is to be judged."""


class Referred(msgspec.Struct, frozen=True, kw_only=True, tag="referred"):
    """What the backend's process must know; the rest is kept."""

    openings: tuple[tuple[Opening, ...], ...]
    asked: int
    """How many results are judged."""


class Weigh(msgspec.Struct, frozen=True, kw_only=True, tag="weigh"):
    """Judge what a backend gave for the case that was referred to last."""

    path: str
    given: tuple[Given, ...]
    whole: bool
    """Whether the case came to its end, so that nothing may be missing."""


class Weighed(msgspec.Struct, frozen=True, kw_only=True, tag="weighed"):
    """What came of it."""

    status: Status | None = None
    """``null``: nothing is wrong."""
    reason: str = ""


class Show(msgspec.Struct, frozen=True, kw_only=True, tag="show"):
    """Asks which program a seed of the fuzzer names."""

    seed: int


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown"):
    """It is this one."""

    program: Program


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """What became of it."""

    result: Result
    given: tuple[Given, ...] = ()
    """What is to be judged; tensors are in the file."""


Request = SuiteSetup | Run | Refer | Weigh | Show
Reply = Ready | Ran | Referred | Weighed | Shown

SERVICE = Service[Request, Reply](
    "backbay_conformance.handler:handler_of_child",
    {SuiteSetup: Ready, Run: Ran, Refer: Referred, Weigh: Weighed, Show: Shown},
)
