"""What a benchmark and the child process that measures say to each other; no torch here."""

from typing import Literal

import msgspec

from backbay.session import Service
from backbay.timing.gpu_work import GpuWork
from backbay.timing.measure import Block, Timed

Kind = Literal["model", "pattern"]
Status = Literal["ok", "wrong", "failed", "crashed", "timeout"]


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Build what is measured: a model with its inputs, or a pattern at one shape."""

    kind: Kind
    name: str
    size: str
    """Of a model ``full`` or ``tiny``; of a pattern the name of a shape."""
    device: str
    seed: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Compile with one arm, check what it computes, keep it ready to be timed."""

    arm: str
    caches: str
    """Folder below which arms have their compiler caches."""
    shared: bool = False
    """Whether all arms have the same: a kernel then runs with the same configuration in each."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, tag="settle"):
    """Call an arm that is ready until later calls do as the last one did; nothing runs beside it.

    What CUDA graphs save is measured in such calls, and they are recorded.
    """

    arm: str


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Look at what the device does during an arm's step."""

    arm: str


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Hold arms against float64, at the size for proofs; what is ready is forgotten."""

    arms: tuple[str, ...]
    caches: str


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag="limits"):
    """Measure how fast the device copies and multiplies."""

    device: str


OfPrepared = Ready | Settle | Watch | Prove | Block
"""Requests of what was prepared."""
Request = Prepare | Limits | OfPrepared


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """It was built."""

    device_name: str
    about: str = ""
    """Its shape, in words."""
    bytes_moved: int | None = None
    """Of a pattern: what must be read and written at least."""
    flops: int | None = None


class Readied(msgspec.Struct, frozen=True, kw_only=True, tag="readied"):
    """How one arm did in its first call."""

    status: Status
    reason: str = ""
    compile_s: float | None = None
    """Of the first call, where the arm's cache folder was empty."""
    error: float | None = None
    """Largest relative root-mean-square difference from the reference, over the results."""
    notes: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled"):
    """An arm does from now on as it did last."""

    step_s: float
    peak_bytes: int | None = None
    """Of the calls that it took; what CUDA graphs hold is among it."""
    notes: tuple[str, ...] = ()


class Watched(msgspec.Struct, frozen=True, kw_only=True, tag="watched"):
    """What the device did."""

    work: GpuWork | None
    """None where nothing was seen."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof said."""

    passed: bool
    reason: str
    about: str
    """The shape that it was made at."""
    ratio: float | None = None
    """Root-mean-square error over eager's own, in the worst tensor."""


class Proved(msgspec.Struct, frozen=True, kw_only=True, tag="proved"):
    """The verdict on each arm."""

    verdicts: dict[str, Verdict]


class Limited(msgspec.Struct, frozen=True, kw_only=True, tag="limited"):
    """What the device can do, measured."""

    device_name: str
    copy_bytes_s: float
    matmul_flops_s: float


Reply = Prepared | Readied | Settled | Watched | Proved | Limited | Timed

SERVICE = Service[Request, Reply](
    "speed.handler:handler",
    {
        Prepare: Prepared,
        Ready: Readied,
        Settle: Settled,
        Watch: Watched,
        Prove: Proved,
        Limits: Limited,
        Block: Timed,
    },
)
