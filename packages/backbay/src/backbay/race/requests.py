"""What is asked of the processes in which backends run, and what they reply.

No torch here: the process that asks never imports it. A model never travels; its workload's
reference, seed and dtype do, and a digest of what was built from them must match. Nor does a
verdict: what a call gave is handed on as a file, for a judge.
"""

import msgspec

from backbay.decisions import Arm, Place
from backbay.race.record import Measured
from backbay.session import Service
from backbay.timing.gpu_work import GpuWork
from backbay.timing.measure import Block, Timed
from backbay.workloads.setup import WorkloadSetup


class ArmSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What is compiled with, and how torch.compile is asked."""

    arm: Arm
    reference: str | None = None
    """What the backend is known by, if not by its name."""
    dynamic: bool | None = None
    """As torch.compile takes it."""
    fullgraph: bool = False
    """Likewise."""

    @property
    def name(self) -> str:
        """What the arm is called in requests, replies and reports."""
        return str(self.arm)


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Build the workload and throw it away: does its function work?"""

    setup: WorkloadSetup
    backends: tuple[str, ...] | None = None
    """To be loaded, too; then a model object was given, and is to be rebuilt alike."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Do these backends take the modes and options of their arms?"""

    arms: tuple[ArmSetup, ...]


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, tag="warm_up"):
    """Have an arm compile a trivial function: what a toolchain does once a machine."""

    setup: WorkloadSetup
    """Where; it is not built."""
    arm: ArmSetup


class GetReady(msgspec.Struct, frozen=True, kw_only=True, tag="get_ready"):
    """Do what takes time and needs no backend: import what compiles, and build the workload."""

    setup: WorkloadSetup


class Proving(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend must be compiled and called so that a judge can compare."""

    draws_random: bool
    math_attention: bool
    reduced: bool

    @property
    def apart(self) -> bool:
        """Whether what is proven is compiled for itself, and not what is timed."""
        return self.draws_random or self.math_attention or self.reduced


class Try(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Get ready to compile with one arm, in an empty cache."""

    setup: WorkloadSetup
    arm: ArmSetup
    digest: str
    proving: Proving


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """Call what an arm compiled, once, and hold what it gives; the first time compiles it."""

    arm: str
    inputs: str | None = None
    """File with the values of the inputs; the workload's own if there is none."""
    fresh: bool = False
    """Whether the inputs are at other addresses than before."""


class CallRow(msgspec.Struct, frozen=True, kw_only=True, tag="call_row"):
    """Call several times in a row, each from the state that the last one left, and hold it all."""

    inputs: tuple[str | None, ...]
    """As for `Call`, one for each."""


class Hand(msgspec.Struct, frozen=True, kw_only=True, tag="hand"):
    """Write what the last call gave to a file."""

    path: str
    picked: int | None
    """What elements are drawn from, of large tensors; all are handed on if there is none."""


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Look at what only the process itself can see, and report what was measured."""


class Capture(msgspec.Struct, frozen=True, kw_only=True, tag="capture"):
    """Report which graphs a backend is handed. It is the last request of a trial."""


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Compile with each arm again and keep them ready to be timed."""

    setup: WorkloadSetup
    arms: tuple[ArmSetup, ...]
    digest: str
    inputs: tuple[str, ...] = ()
    """Files with further sets of inputs, after the workload's own."""
    cache: str = ""
    """The compilers' cache folder; as the environment has it if there is none."""
    warm: bool = False
    """Whether the time that compilation takes is measured, by itself."""


class Renew(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """Renew the inputs of the next block: each call gets its own, which nobody has seen."""

    inputs: int
    """Which set the last of them gets, of those that the process knows: its truth is known."""
    calls: int


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Look at what the device does during a step of an arm that is ready to be timed."""

    arm: str


Request = (
    Load
    | Check
    | WarmUp
    | GetReady
    | Try
    | Call
    | CallRow
    | Hand
    | Finish
    | Capture
    | Open
    | Renew
    | Watch
    | Block
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The workload was built."""

    workload: str
    """Its canonical name."""
    likeness: str = ""
    """Of its values and code, where backends were to be loaded, too."""


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """What is wrong with them."""

    problems: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """It was done; there is nothing to say of it."""


class Finished(Measured, frozen=True, kw_only=True, tag="finished"):
    """What a backend's process has to say."""

    fault: str = ""
    """Why it is wrong, of what no judge can see."""
    disturbs: tuple[str, ...] = ()
    """What it changed of that which all in a process share."""


class Captured(msgspec.Struct, frozen=True, kw_only=True, tag="captured"):
    """What a decision is looked up by."""

    graphs: tuple[str, ...]
    """Their digests."""
    place: Place


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """Which arms are ready to be timed."""

    step_s: dict[str, float]
    """Arm to the time of one warm step."""
    failed: dict[str, str]
    """Arm to why it did not get ready."""
    compile_s: dict[str, float] = {}
    """Arm to how long its compilation took, where that is measured."""
    most_calls: int
    """That a block may have: each has inputs of its own."""


class Watched(msgspec.Struct, frozen=True, kw_only=True, tag="watched"):
    """What the device did."""

    work: GpuWork | None
    """``null`` where nobody can tell."""


Reply = Loaded | Checked | Done | Finished | Captured | Opened | Watched | Timed

SERVICE = Service[Request, Reply](
    "backbay.race.handler:RaceHandler",
    {
        Load: Loaded,
        Check: Checked,
        WarmUp: Done,
        GetReady: Done,
        Try: Done,
        Call: Done,
        CallRow: Done,
        Hand: Done,
        Finish: Finished,
        Capture: Captured,
        Open: Opened,
        Renew: Done,
        Watch: Watched,
        Block: Timed,
    },
)
