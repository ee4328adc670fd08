"""What is asked of the processes of a race, and what they reply.

No torch here: the process that asks never imports it. A model never travels; its workload's
reference, seed and dtype do, and a digest of what was built from them must match.
"""

import msgspec

from backbay.race.record import Trying
from backbay.session import Service
from backbay.timing.measure import Block, Timed
from backbay.workloads.setup import WorkloadSetup


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Build the workload and throw it away: does its function work?"""

    setup: WorkloadSetup


class Reference(msgspec.Struct, frozen=True, kw_only=True, tag="reference"):
    """Run eager and float64 truth once, and keep the results in a file."""

    setup: WorkloadSetup
    golden: str
    """Path of the file to write."""


class Try(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Compile with one backend, in an empty cache, and prove the result."""

    setup: WorkloadSetup
    backend: str
    golden: str
    digest: str


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Compile with each backend again and keep them ready to be timed."""

    setup: WorkloadSetup
    backends: tuple[str, ...]
    digest: str


Request = Load | Reference | Try | Open | Block


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The workload was built."""

    workload: str
    """Its canonical name."""


class Referenced(msgspec.Struct, frozen=True, kw_only=True, tag="referenced"):
    """The reference is in its file."""

    workload: str
    digest: str
    peak_bytes: int | None
    notes: tuple[str, ...]
    device_name: str


class Tried(Trying, frozen=True, kw_only=True, tag="tried"):
    """How one backend did, before it is timed."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """Which backends are ready to be timed."""

    step_s: dict[str, float]
    """Backend to the time of one warm step."""
    failed: dict[str, str]
    """Backend to why it did not get ready."""


Reply = Loaded | Referenced | Tried | Opened | Timed

SERVICE = Service[Request, Reply]("backbay.race.handler:RaceHandler", Reply)
