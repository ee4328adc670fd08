"""What is asked of the process that compiles and measures, and what it replies. No torch here."""

from typing import Any

import msgspec

from backbay.diagnose.record import TrialRecord, WhiteBox
from backbay.diagnose.remedy import Remedy
from backbay.explain import Explanation
from backbay.race.requests import ArmSetup
from backbay.session import Service, Session
from backbay.workloads.setup import WorkloadSetup


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag="explain"):
    """Explain the workload; as `backbay.explain.run` does."""

    setup: WorkloadSetup
    backend: str | None
    """``None``: graphs are captured, and run as they are."""
    mode: str | None
    options: dict[str, Any]
    dynamic: bool | None = None
    fullgraph: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """Compile, look inside of Inductor, and measure a step."""

    setup: WorkloadSetup
    arm: ArmSetup
    timing_s: float
    """Seconds for the timing of a step, and as many for its profile."""


class Try(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Compile with a remedy, prove it right, and time it beside what there was."""

    setup: WorkloadSetup
    arm: ArmSetup
    """As it is without the remedy."""
    remedy: Remedy
    timing_s: float
    """Seconds for the timing of both sides."""


Request = Explain | Look | Try


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """What Dynamo did."""

    explanation: Explanation
    own_calls: int
    """How many of its calls are with inputs that were given; the others have batch sizes that
    nobody asked for."""


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag="looked"):
    """What was seen and measured."""

    inside: WhiteBox
    device_name: str
    blocks: int
    """Repeated blocks that the model has."""
    convolutions: int
    """Convolutions whose weights are laid out with channels first."""
    could_be_tf32: bool = False
    """Whether it computes matrix products in float32 on a GPU that has TF32, and doesn't use it."""


class Tried(msgspec.Struct, frozen=True, kw_only=True, tag="tried"):
    """What came of a remedy."""

    trial: TrialRecord


Reply = Explained | Looked | Tried

DiagnoseSession = Session[Request, Reply]

SERVICE = Service[Request, Reply](
    "backbay.diagnose.handler:DiagnoseHandler",
    {Explain: Explained, Look: Looked, Try: Tried},
)
