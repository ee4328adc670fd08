"""What a benchmark and the child process that measures say to each other; no torch here."""

from typing import Literal

import msgspec

from backbay.session import Service
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


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Hold arms against float64, at the size for proofs; what is ready is forgotten."""

    arms: tuple[str, ...]
    caches: str


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag="limits"):
    """Measure how fast the device copies and multiplies."""

    device: str


Request = Prepare | Ready | Prove | Limits | Block


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """It was built."""

    device_name: str
    about: str = ""
    """Its shape, in words."""
    bytes_moved: int | None = None
    """Of a pattern: what must be read and written at least."""
    flops: int | None = None


class Readied(msgspec.Struct, frozen=True, kw_only=True, tag="readied"):
    """How one arm did before it was timed."""

    status: Status
    reason: str = ""
    compile_s: float | None = None
    """Of the first call, where the arm's cache folder was empty."""
    step_s: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    """Largest relative root-mean-square difference from the reference, over the results."""
    notes: tuple[str, ...] = ()


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


Reply = Prepared | Readied | Proved | Limited | Timed

SERVICE = Service[Request, Reply](
    "speed.handler:handler",
    {Prepare: Prepared, Ready: Readied, Prove: Proved, Limits: Limited, Block: Timed},
)
