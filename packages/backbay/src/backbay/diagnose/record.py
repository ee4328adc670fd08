"""What a diagnosis says, as data: the schema of ``backbay diagnose --json``.

Findings are an explanation's, under the same codes, with what they cost and what was tried. A
``line`` is the user's own, ``file:line: code``, and empty where nobody knows it. Times are in
milliseconds a step unless a name says seconds; ``null`` is what was not measured.
"""

from typing import Literal

import msgspec

from backbay.explain import Explanation, FindingRecord
from backbay.reporting.machine import Machine
from backbay.timing.interval import Interval
from backbay.workloads.setup import Mode

SCHEMA = "backbay.diagnose/1"

Status = Literal["confirmed", "no_gain", "worse", "wrong", "failed", "not_tried"]
"""``confirmed``: fewer breaks or recompiles and not ``worse``, or surely faster, by more than 3 %.
``worse``: surely slower, by more than 3 %. ``no_gain``: neither. ``wrong``: its result is not the
model's. ``failed``: it raises, or its process died."""

Work = Literal["pointwise", "reduction", "gemm", "attention", "convolution", "copy", "other"]


class SideRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one side: as it is, or with a remedy."""

    graphs: int
    breaks: int
    recompiles: int | None
    """Over the calls of the explanation; ``null`` where only equal calls were made."""
    compile_s: float
    """Seconds that compiling took, measured once, in an empty cache."""
    step_ms: float | None
    step_ci_ms: Interval | None
    peak_bytes: int | None
    """Of a warm step."""


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy, and what came of it."""

    remedy: str
    """What to change, as code."""
    status: Status
    sentence: str
    """What came of it, in one line; of what was not tried, why."""
    before: SideRecord | None = None
    after: SideRecord | None = None
    speedup: float | None = None
    """Time of a step before, over that after; both sides took turns in one process."""
    speedup_ci: Interval | None = None


class RankedFinding(FindingRecord, frozen=True, kw_only=True):
    """A finding, what it costs and what was tried."""

    saved_s: float | None = None
    """Seconds that the best confirmed remedy saves in the first thousand steps, with what it saves
    in compiling again; ``null`` where nothing was confirmed."""
    trials: tuple[TrialRecord, ...] = ()
    supposed: bool = False
    """Whether it was met only with batch sizes that the diagnosis made up: it matters where yours
    varies."""

    @property
    def urgent(self) -> bool:
        """Whether it is to be fixed: it costs time as it is, or a remedy surely gains."""
        return self.severity != "note" or (self.saved_s is not None and not self.supposed)


class NeighbourRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that reads what another wrote, and was not fused with it."""

    kernel: str
    reason: str
    """Inductor's own."""


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a kernel in a compiled graph."""

    name: str
    """As in the generated code, with its number in the graph: ``extern_kernels.mm:3``."""
    kind: Literal["triton", "cpp", "extern"]
    work: Work
    lines: tuple[str, ...]
    """The user's lines that it computes."""
    operators: tuple[str, ...]
    """What is fused into it: operators of the graph that Inductor lowers."""
    ms: float | None
    """Of a step; ``null`` where the profiler did not see it."""
    share: float | None
    """Of the time of all kernels."""
    bytes: int | None
    """That it reads and writes, as Inductor counts them; ``null`` where it doesn't."""
    operations: int | None
    """Floating-point operations, where Inductor counts them."""
    of_limit: float | None
    """How near it is to this machine's measured limit: 1 is as fast as a copy of as many bytes, or
    as a large matrix product of as many operations. Above 1, data stayed in caches."""
    not_fused: tuple[NeighbourRecord, ...]
    code: str
    """Its source; empty for an extern kernel."""


class CompiledGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One graph as Inductor compiled it."""

    number: int
    compile_id: str
    """As in torch's own logs: frame and version, ``0/1``."""
    direction: Literal["forward", "backward", "inference"]
    calls: float
    """How often a step runs it."""
    kernels: tuple[KernelRecord, ...]
    code: str
    """The generated wrapper, with all kernels."""


class OutsideRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a step that belongs to no kernel of a compiled graph."""

    name: str
    ms: float
    lines: tuple[str, ...] = ()
    """The user's lines that call it, where the model was seen to run uncompiled."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step's time goes."""

    wall_ms: float
    wall_ci_ms: Interval
    kernels_ms: float
    """In kernels of compiled graphs, under the profiler."""
    outside_ms: float
    """In operators outside of compiled graphs: what runs uncompiled."""
    copies_ms: float
    """In copies between devices and the host."""
    guards_ms: float
    """In looking up which compiled graph fits."""
    host_ms: float
    """What else the host does: launches, wrappers, Python. On a CPU under the profiler; on a GPU,
    what of the wall time is left."""
    by_work: dict[str, float]
    """Kind of work to milliseconds in kernels."""
    peak_bytes: int | None

    @property
    def parts_ms(self) -> float:
        """All parts together: what shares are of, since parts are longer under the profiler."""
        busy_ms = self.kernels_ms + self.outside_ms + self.copies_ms
        return busy_ms + self.guards_ms + self.host_ms


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine can do: the best that was ever measured on it."""

    copy_bytes_s: float
    """Bytes read and written in a second by a copy that fits no cache."""
    product_operations_s: float
    """Floating-point operations in a second of a large matrix product, in the workload's dtype."""


class WhiteBox(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen inside of Inductor, and of a step."""

    graphs: tuple[CompiledGraph, ...]
    outside: tuple[OutsideRecord, ...]
    """What ran outside of compiled graphs, and kernels that could not be told; longest first."""
    step: StepRecord
    limit: LimitRecord
    phases_s: dict[str, float]
    """Phase of compiling to its seconds, without those of the phases inside of it."""
    compile_s: float
    notes: tuple[str, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    workload: str
    arm: str
    """Backend, mode, options: as one writes it for a race."""
    dynamic: bool | None
    fullgraph: bool
    mode: Mode
    dtype: str
    device: str
    seed: int


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a model slow under torch.compile, what to change, and what it gains."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    versions: dict[str, str]
    settings: Settings
    sentence: str
    """What to fix first."""
    findings: tuple[RankedFinding, ...]
    """What costs most comes first."""
    inside: WhiteBox | None
    """``null`` where nothing was compiled."""
    explanation: Explanation
    notes: tuple[str, ...]
