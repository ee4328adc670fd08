"""What is asked of the processes of a verification, and what they reply. No torch.

A model never travels; its reference, seed and dtype do. What eager and float64 gave is in files.
"""

from typing import Literal

import msgspec

from backbay.session import NoReply, Service, Session
from backbay.verify.record import CheckRecord, Status
from backbay.workloads.setup import WorkloadSetup


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One mode of a workload: how it is built, and where what it is held against is kept."""

    setup: WorkloadSetup
    folder: str
    digest: str = ""
    """Of the workload that was prepared; empty before: each process must build the same one."""


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

    course: Course
    steps: int
    batches: tuple[int, ...] | None
    """Sizes to try; ``null``: choose two."""


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Judge the compiled model in one situation; it is compiled first where it is not yet."""

    course: Course
    backend: str
    situation: Situation


class Train(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train freely with the compiled model."""

    course: Course
    backend: str
    steps: int
    learning_rate: float


class Calls(msgspec.Struct, frozen=True, kw_only=True, tag="calls"):
    """List which modules call which, in eager."""

    course: Course


class Alone(msgspec.Struct, frozen=True, kw_only=True, tag="alone"):
    """Compile one module by itself, and judge it on the inputs that it gets in eager."""

    course: Course
    backend: str
    situation: Situation
    module: str
    """Its path; empty for the model itself."""
    eager: tuple[str, ...] = ()
    """Paths of modules inside that are not compiled."""


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
    course: Course
    """As it was asked for, with the workload's digest."""
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

    checks: tuple[CheckRecord, ...] = ()
    """Empty where nothing was computed."""
    status: Status = "right"
    """That of the first check that is not ``right``; without checks, what became of it."""
    reason: str = ""
    graphs: int = 0
    breaks: int = 0
    hands_on_to: str = ""
    """The backend that generates its code, where it says so."""
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> CheckRecord | None:
        """The first check that is not right, else the first; None where there is none."""
        wrong = (x for x in self.checks if x.status != "right")
        return next(wrong, self.checks[0] if self.checks else None)


class Trained(msgspec.Struct, frozen=True, kw_only=True, tag="trained"):
    """A free training's losses."""

    losses: tuple[float | None, ...]
    drift: float | None


class Called(msgspec.Struct, frozen=True, kw_only=True, tag="called"):
    """Every module that was called, in the order of the calls; the model itself is the first."""

    calls: tuple[Call, ...]


class NothingToTrain(msgspec.Struct, frozen=True, kw_only=True, tag="nothing_to_train"):
    """Neither parameters nor inputs could have a gradient."""

    reason: str = "there is nothing to train: no parameter or input could have a gradient"


Request = Prepare | Prove | Train | Calls | Alone
Reply = Prepared | Judged | Trained | Called | NothingToTrain

SERVICE = Service[Request, Reply](
    "backbay.verify.handler:VerifyHandler",
    {
        Prepare: Prepared | NothingToTrain,
        Prove: Judged,
        Train: Trained,
        Calls: Called,
        Alone: Judged,
    },
)

VerifySession = Session[Request, Reply]


def judged(session: VerifySession, request: Prove | Alone, *, timeout_s: float) -> Judged:
    """Return a judgement; no reply is one as well."""
    try:
        reply = session.ask(request, timeout_s=timeout_s)
    except NoReply as error:
        return Judged(status=error.status, reason=error.reason)
    assert isinstance(reply, Judged)
    return reply
