"""What the race and its child processes say to each other, one JSON object a line.

No torch here: the process that asks never imports it. A model never travels; its workload's
reference, seed and dtype do, and a digest of what was built from them must match.
"""

import msgspec

from backbay.race.record import Mode, Trying


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How to build a workload: the same setup gives bitwise the same model and inputs."""

    workload: str
    """The reference that the user gave."""
    size: str | None
    mode: Mode
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``."""
    device: str
    seed: int

    @property
    def train(self) -> bool:
        """Whether a step is forward and backward."""
        return self.mode == "train"


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Build the workload and throw it away: does its function work?"""

    setup: Setup


class Reference(msgspec.Struct, frozen=True, kw_only=True, tag="reference"):
    """Run eager and float64 truth once, and keep the results in a file."""

    setup: Setup
    golden: str
    """Path of the file to write."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """Compile with one backend, in an empty cache, and prove the result."""

    setup: Setup
    backend: str
    golden: str
    digest: str


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Compile with each backend again and keep them ready to be timed."""

    setup: Setup
    backends: tuple[str, ...]
    digest: str


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """Warm one backend up and time a block of its calls."""

    backend: str
    warmups: int
    calls: int


Request = Load | Reference | Trial | Open | Block


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


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """One block's time."""

    seconds: float
    """Of all calls together."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request could not be carried out."""

    reason: str
    input_error: bool = False
    """Whether what the user gave is at fault."""
    detail: str = ""
    """The user's own traceback, where their code raised."""


Reply = Loaded | Referenced | Tried | Opened | Timed | Refused
