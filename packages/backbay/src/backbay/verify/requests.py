"""What is asked of the processes of a verification, and what they reply. No torch.

A model never travels; its reference, seed and dtype do. One process makes what backends are held
against, and another keeps it and compares: no backend is loaded in either. Those of backends write
what their calls gave to files.
"""

from typing import Literal

import msgspec

from backbay.decisions import Arm
from backbay.session import Service, Session
from backbay.verify.record import Status
from backbay.workloads.setup import WorkloadSetup


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One mode of a workload: how it is built, and how it is proven."""

    setup: WorkloadSetup
    folder: str
    """Where the states of training are, and what passes from one process to another."""
    digest: str = ""
    """Of the workload that was prepared; empty before: each process must build the same one."""
    reduced: bool = False
    """Whether it is proven on smaller inputs than its own."""
    draws_random: bool = False
    math_attention: bool = False
    dynamic: bool | None = None
    """As torch.compile takes it."""
    fullgraph: bool = False
    """Likewise."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is called with, and in which state."""

    kind: Literal["first", "calls", "step", "batch"] = "first"
    """``first``: as the workload is. ``calls``: again and again, also with other values and at
    other addresses. ``step``: with parameters and buffers as eager's training left them.
    ``batch``: with another batch size."""
    number: int = 0
    """The step, counted from 1; or the batch size."""
    own_loss: bool = True
    """Whether the workload's loss takes it; one that keeps labels takes no other batch size."""

    @property
    def name(self) -> str:
        """How it is called in reports and files."""
        return f"{self.kind} {self.number}" if self.kind in {"step", "batch"} else self.kind


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Run eager and float64 in every situation, and keep what they gave in files."""

    course: Course
    steps: int
    batches: tuple[int, ...] | None
    """Sizes to try; ``null``: choose two."""
    seeds: tuple[int, ...]
    """What further sets of inputs are drawn from; backends don't get them."""


class PrepareAlone(msgspec.Struct, frozen=True, kw_only=True, tag="prepare_alone"):
    """Run eager and float64 on one module alone, on the inputs that it gets in eager."""

    course: Course
    situation: Situation
    module: str
    path: str
    """Of the file to write."""


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Run the compiled model in one situation; it is compiled first where it is not yet."""

    course: Course
    arm: Arm
    situation: Situation
    path: str
    """Of the file to write what it gave to."""


class Again(msgspec.Struct, frozen=True, kw_only=True, tag="again"):
    """Call the compiled model once more, as in the first situation."""

    course: Course
    arm: Arm
    inputs: str | None
    """File of the values to call it with; ``null``: the workload's own."""
    fresh: bool
    """Whether the inputs are at other addresses than in other calls."""


class AgainInARow(msgspec.Struct, frozen=True, kw_only=True, tag="again_in_a_row"):
    """Call the compiled model once with each set of inputs, from the state that the last left."""

    course: Course
    arm: Arm
    inputs: tuple[str | None, ...]
    """Files of the values; ``null``: the workload's own."""


class Hand(msgspec.Struct, frozen=True, kw_only=True, tag="hand"):
    """Write what the last such call gave to a file."""

    course: Course
    arm: Arm
    path: str
    picked: int | None
    """Seed of which elements of large tensors to write; ``null``: all."""


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Report what only this process can see of all such calls."""

    course: Course
    arm: Arm


class Train(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train freely with the compiled model."""

    course: Course
    arm: Arm
    steps: int
    learning_rate: float
    path: str
    """Of the file to write the trained parameters to."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Do these backends take their modes and options?"""

    arms: tuple[Arm, ...]


class Calls(msgspec.Struct, frozen=True, kw_only=True, tag="calls"):
    """List which modules call which, in eager."""

    course: Course


class Alone(msgspec.Struct, frozen=True, kw_only=True, tag="alone"):
    """Compile one module by itself, and run it on the inputs that it gets in eager."""

    course: Course
    arm: Arm
    situation: Situation
    module: str
    """Its path; empty for the model itself."""
    eager: tuple[str, ...]
    """Paths of modules inside that are not compiled."""
    prepared: "AlonePrepared"
    path: str
    """Of the file to write what it gave to."""


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
    """As it was asked for, with what is known of the workload now."""
    situations: tuple[Situation, ...]
    """Those that have a truth, in the order in which they are to be tried."""
    usual_graphs: tuple[int | None, ...]
    """How many graphs Dynamo alone compiles in each."""
    goldens: tuple[tuple[str, str], ...]
    """Name and file of each golden, and of the parameters that training ended at."""
    bank: str
    """File of the first golden, with those of further sets of inputs."""
    seeds: tuple[int, ...]
    """Of each set of inputs, what the elements are drawn from that are kept; see `Bank`."""
    row: tuple[int, ...]
    """Which sets two calls in a row have; none if they can't be judged."""
    learning_rate: float
    eager_losses: tuple[float | None, ...]
    """``null`` where it is not finite."""
    true_losses: tuple[float | None, ...]
    device_name: str
    notes: tuple[str, ...]


class AlonePrepared(msgspec.Struct, frozen=True, kw_only=True, tag="alone_prepared"):
    """What a module alone is held against is in its file; or why there is nothing."""

    unproven: str = ""
    train: bool = False
    """Whether it has gradients."""
    reduced: bool = False
    draws_random: bool = False
    math_attention: bool = False


class Gave(msgspec.Struct, frozen=True, kw_only=True, tag="gave"):
    """What a run of a backend gave is in its file, or how it ended without."""

    status: Status = "right"
    """``right``: there is something to judge."""
    reason: str = ""
    graphs: int = 0
    breaks: int = 0
    hands_on_to: str = ""
    """The backend that generates its code, where it says so."""
    notes: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """It was done."""


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """What was seen of all calls."""

    fault: str
    """What is wrong though every result is right; empty where nothing is."""
    notes: tuple[str, ...]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """What is wrong with them."""

    problems: tuple[str, ...]


class Trained(msgspec.Struct, frozen=True, kw_only=True, tag="trained"):
    """A free training's losses; the parameters are in the file."""

    losses: tuple[float | None, ...]


class Called(msgspec.Struct, frozen=True, kw_only=True, tag="called"):
    """Every module that was called, in the order of the calls; the model itself is the first."""

    calls: tuple[Call, ...]


class NothingToTrain(msgspec.Struct, frozen=True, kw_only=True, tag="nothing_to_train"):
    """Neither parameters nor inputs could have a gradient."""

    reason: str = "there is nothing to train: no parameter or input could have a gradient"


OfModel = Prove | Again | AgainInARow | Hand | Finish | Train
"""What is asked of a model that a backend has compiled."""
OfCourse = OfModel | Prepare | PrepareAlone | Calls | Alone
"""What is asked of a workload."""
Request = OfCourse | Check
Reply = (
    Prepared | AlonePrepared | Gave | Done | Finished | Trained | Called | NothingToTrain | Checked
)

SERVICE = Service[Request, Reply](
    "backbay.verify.handler:VerifyHandler",
    {
        Prepare: Prepared | NothingToTrain,
        PrepareAlone: AlonePrepared,
        Prove: Gave,
        Again: Done,
        AgainInARow: Done,
        Hand: Done,
        Finish: Finished,
        Train: Trained,
        Calls: Called,
        Alone: Gave,
        Check: Checked,
    },
)

VerifySession = Session[Request, Reply]
