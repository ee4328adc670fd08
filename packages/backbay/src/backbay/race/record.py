"""What a race reports, as data: the schema of ``backbay race --json``.

Every record is a plain structure without torch in it, so that the process that draws tables and
pages never imports torch. Times are in milliseconds where the name ends in ``_ms``, in seconds
where it ends in ``_s``; sizes are in bytes. A value that was not measured is ``null``, never zero.
"""

from typing import Any, Literal

import msgspec

from backbay.decisions import Arm
from backbay.decisions.arm import WHOLE
from backbay.judge import Judged, Judgement
from backbay.race.comparison import Comparison
from backbay.race.objective import Objective
from backbay.reporting.machine import Machine
from backbay.timing.gpu_work import GpuWork
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

SCHEMA = "backbay.race/1"
EAGER = "eager"
"""What the others are measured by: it takes part in every race."""

AS_IT_IS = "runs the captured graph as it is"
"""A note, where a backend compiles nothing."""

Status = Literal["ok", "wrong", "failed", "crashed", "timeout", "unavailable"]


class VerdictRecord(Judgement, frozen=True, kw_only=True):
    """Whether a backend's results are right, and by how much."""

    calls: int = 0
    """How many calls were judged."""

    @classmethod
    def of(cls, judged: Judged, calls: int) -> "VerdictRecord":
        """Return the record of a judgement of so many calls."""
        reason = judged.reason if judged.passed else f"{judged.reason} ({judged.what})"
        same = {x: getattr(judged, x) for x in Judgement.__struct_fields__}
        return cls(**same | {"reason": reason, "calls": calls})

    @property
    def why(self) -> str:
        """Why it failed, and where; one line."""
        return f"{self.where}: {self.reason}" if self.where else self.reason


class LeftToTorch(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a step's operators a backend leaves to torch's own kernels."""

    operators: int
    """Of the model as it is: those that compute something, as torch dispatches them."""
    left: int
    most: tuple[tuple[str, int], ...]
    """The most frequent ones that torch still runs, and how often it does."""

    def worded(self) -> str:
        """Return it in words."""
        named = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in self.most)
        return f"leaves {self.left} of {self.operators} operators to torch's kernels: {named}"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a backend measured and saw, before it is timed."""

    compile_s: float | None = None
    """Wall time of the first call in an empty cache, less ``warmup_s``."""
    warmup_s: float | None = None
    """The toolchain's own warm-up, paid once a machine: imports, precompiled headers."""
    compile_peak_bytes: int | None = None
    """Peak memory of the process (CPU) or the device allocator (GPU) while compiling."""
    peak_bytes: int | None = None
    """The same, while running one compiled step."""
    graphs: int | None = None
    """Graphs handed to the backend."""
    breaks: int | None = None
    """Graph breaks: lines of the model, each for one reason, as ``backbay explain`` has them."""
    left_to_torch: LeftToTorch | None = None
    """``null`` where torch does not let it be counted."""
    slow: tuple[str, ...] = ()
    """What makes it slower than it could be: recompilations, graph breaks; one line each."""
    outputs_live: Literal["next_call"] | None = None
    """``next_call`` where torch lets nobody look at an output after the next call."""
    notes: tuple[str, ...] = ()
    """What a reader must know to read the numbers rightly."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of a step's calls, timed by itself."""

    call: str
    """What it differs from the others by: ``batch 8``."""
    median_ms: float
    ci_ms: Interval
    ratio_to_eager: float
    ratio_to_eager_ci: Interval


class Trying(Measured, frozen=True, kw_only=True):
    """How one backend did on one workload, before it is timed."""

    status: Status
    reason: str = ""
    """Why the status is not ``ok``; one line."""
    verdict: VerdictRecord | None = None
    """``null`` where nothing was compared: eager is what the others are compared with."""
    compiled_beside: int = 0
    """How many other arms were tried at the same time: alone, it compiles in less."""
    warm_compile_s: float | None = None
    """Wall time of the first call from a warm cache, less a warm call; ``null`` where nobody asked.
    """


class Result(Trying, frozen=True, kw_only=True):
    """One arm on one workload: a row of the table."""

    workload: str
    mode: Mode
    """What a step is."""
    backend: str
    compile_mode: str | None = None
    """The arm's, as torch.compile takes it."""
    options: dict[str, Any] = {}
    """Likewise."""
    scope: str = WHOLE
    """What of the model is compiled: ``whole``, ``blocks``, or the name of a submodule."""
    arm: str = ""
    """Backend, mode, options and scope as one writes them: what the row is called."""
    median_ms: float | None = None
    ci_ms: Interval | None = None
    ratio_to_eager: float | None = None
    """Eager's median over this backend's: above 1 is faster than eager."""
    ratio_to_eager_ci: Interval | None = None
    ratio_to_inductor: float | None = None
    """Inductor's median over this backend's; ``null`` where inductor is not in the race."""
    ratio_to_inductor_ci: Interval | None = None
    samples_ms: tuple[float, ...] = ()
    """One sample a round: the mean of a block of calls."""
    eager_samples_ms: tuple[float, ...] = ()
    """Eager's in the same rounds, where they are others than those of its own row: this backend was
    timed by itself, and its ratios are by way of these."""

    gpu_work: GpuWork | None = None
    """What the GPU does during a step, by a short profile after the timing; ``null`` on a CPU."""
    waits: tuple[str, ...] = ()
    """Where the GPU waits for the host, or copies take long: how much, and what to try; one line
    each."""

    parts: tuple[Part, ...] = ()
    """Of a step that calls the model several times, each call; empty where it was not timed."""

    def __post_init__(self) -> None:
        if not self.arm:
            msgspec.structs.force_setattr(self, "arm", str(self.as_arm))

    @property
    def as_arm(self) -> Arm:
        """The arm as one value."""
        return Arm(
            backend=self.backend,
            mode=self.compile_mode,
            options=self.options,
            scope=self.scope,
        )


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Which arm to use for one workload, or that it cannot be told."""

    workload: str
    mode: Mode
    winner: str
    """The arm to use; ``eager`` where nothing is significantly better."""
    abstained: bool
    """True where the measurement does not tell the best arm from the default."""
    unclear: bool = False
    """Whether it abstained because the times scatter: another race may tell."""
    ratio_to_eager: float | None = None
    ratio_to_eager_ci: Interval | None = None
    sentence: str
    elsewhere: dict[str, str] = {}
    """Where a step calls the model several times: which call has another best arm, and which."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    backends: tuple[str, ...]
    mode: Mode
    dtype: str
    device: str
    seed: int
    arms: tuple[str, ...] = ()
    """As one writes them; default: the backends."""
    dynamic: bool | None = None
    """As torch.compile takes it."""
    fullgraph: bool = False
    """Likewise."""
    objective: Objective = Objective()
    """What was decided by."""

    def __post_init__(self) -> None:
        if not self.arms:
            msgspec.structs.force_setattr(self, "arms", self.backends)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole race."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    versions: dict[str, str]
    """Distribution name to version: python, torch, backbay, and what provides each backend."""
    settings: Settings
    decision: tuple[Decision, ...]
    """One for each workload that was raced to its end, in that order."""
    results: tuple[Result, ...]
    isolation: Literal["process", "in_process"] = "process"
    """``in_process`` where backends ran in the process of who asked: cheats and crashes are not
    contained then."""
    partial: bool = False
    """Whether it was interrupted: the workload that was being raced has no decision and no times,
    and those after it are missing."""
    notes: tuple[str, ...] = ()
    against: Comparison | None = None
    """An earlier race that this one was compared with."""

    @property
    def unraced(self) -> tuple[Decision, ...]:
        """Of the workloads whose eager could not be timed, so that there was nothing to race."""
        timed = {x.workload for x in self.results if x.backend == EAGER and x.median_ms is not None}
        return tuple(x for x in self.decision if x.workload not in timed)
