"""What a verification and its child processes say to each other, one JSON object a line. No torch.

A model never travels; its reference, seed and dtype do. What eager and float64 gave is in files.
"""

from typing import Literal

import msgspec

from backbay.race.job import Setup
from backbay.verify.record import ProofRecord, Status

__all__ = [
    "Alone",
    "Call",
    "Called",
    "Calls",
    "Judged",
    "Part",
    "Prepare",
    "Prepared",
    "Prove",
    "Refused",
    "Reply",
    "Request",
    "Setup",
    "Situation",
    "Train",
    "Trained",
]


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is called with, and in which state."""

    kind: Literal["first", "step", "batch"] = "first"
    """``first``: as the workload is. ``step``: with parameters and buffers as eager's training left
    them. ``batch``: with another batch size."""
    number: int = 0
    """The step, counted from 1; or the batch size."""
    own_loss: bool = True
    """Whether the workload's loss takes it; one that keeps labels takes no other batch size."""

    @property
    def name(self) -> str:
        """How it is called in reports and files."""
        return self.kind if self.kind == "first" else f"{self.kind} {self.number}"


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Run eager and float64 in every situation, and keep what they gave in files."""

    setup: Setup
    folder: str
    steps: int
    batches: tuple[int, ...] | None
    """Sizes to try; ``null``: choose two."""


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Judge the compiled model in one situation; it is compiled first where it is not yet."""

    setup: Setup
    folder: str
    digest: str
    backend: str
    situation: Situation


class Train(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train freely with the compiled model."""

    setup: Setup
    folder: str
    digest: str
    backend: str
    steps: int
    learning_rate: float


class Calls(msgspec.Struct, frozen=True, kw_only=True, tag="calls"):
    """List which modules call which, in eager."""

    setup: Setup
    folder: str
    digest: str


class Alone(msgspec.Struct, frozen=True, kw_only=True, tag="alone"):
    """Compile one module by itself, and judge it on the inputs that it gets in eager."""

    setup: Setup
    folder: str
    digest: str
    backend: str
    situation: Situation
    module: str
    """Its path; empty for the model itself."""
    eager: tuple[str, ...] = ()
    """Paths of modules inside that are not compiled."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One check that a situation gives rise to."""

    check: str
    status: Status
    reason: str
    proof: ProofRecord


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One module that was called; only its first call counts."""

    module: str
    caller: str | None
    """Path of the module that called it; ``null`` for the model itself."""
    type: str
    forward: str
    called_at: str


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """What there is to be held against."""

    workload: str
    digest: str
    batch: int | None
    """The workload's own batch size; ``null`` where it has none."""
    situations: tuple[Situation, ...]
    """Those that have a truth, in the order in which they are to be tried."""
    usual_graphs: tuple[int | None, ...]
    """How many graphs Dynamo alone compiles in each."""
    learning_rate: float
    eager_losses: tuple[float | None, ...]
    """``null`` where it is not finite."""
    true_losses: tuple[float | None, ...]
    device_name: str
    notes: tuple[str, ...]


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag="judged"):
    """How it went in one situation."""

    parts: tuple[Part, ...] = ()
    """Empty where nothing was computed."""
    status: Status = "right"
    """``failed``, ``not_compiled`` or ``unproven`` where nothing was judged."""
    reason: str = ""
    graphs: int = 0
    breaks: int = 0
    hands_on_to: str = ""
    """The backend that generates its code, where it says so."""
    notes: tuple[str, ...] = ()


class Trained(msgspec.Struct, frozen=True, kw_only=True, tag="trained"):
    """A free training's losses."""

    losses: tuple[float | None, ...]
    drift: float | None


class Called(msgspec.Struct, frozen=True, kw_only=True, tag="called"):
    """Every module that was called, in the order of the calls; the model itself is the first."""

    calls: tuple[Call, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request could not be carried out."""

    reason: str
    input_error: bool = False
    """Whether what the user gave is at fault."""
    nothing_to_train: bool = False
    detail: str = ""
    """The user's own traceback, where their code raised."""


Request = Prepare | Prove | Train | Calls | Alone
Reply = Prepared | Judged | Trained | Called | Refused
