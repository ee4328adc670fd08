"""What a verification says, as data: the schema of ``backbay verify --json``.

Plain structures without torch in them, as a race's. A value that was not measured, or is not
finite, is ``null``.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from backbay.reporting.machine import Machine
from backbay.workloads.setup import Mode

SCHEMA = "backbay.verify/1"

Status = Literal[
    "right", "wrong", "failed", "crashed", "timeout", "not_compiled", "unproven", "not_tried"
]
"""What became of one check:

- ``right``, ``wrong``: what was computed, by the rule. ``failed``: the backend raised.
- ``crashed``: the process died. ``timeout``: no answer in time.
- ``not_compiled``: the backend was given no graph, so nothing of it was seen.
- ``unproven``: eager gives nothing that could be compared with.
- ``not_tried``: an earlier check left nothing to try; says nothing of the backend.
"""
FAILURES: frozenset[Status] = frozenset({"wrong", "failed", "crashed", "timeout", "not_compiled"})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    check_s: float = 600.0
    """One check, with what it compiles; or the reference of one mode."""
    blame_s: float = 180.0
    """The search for the first module that is wrong; 0: there is none."""


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far a result is from the truth."""

    passed: bool
    reason: str
    """Why it failed, or what it passed; one sentence."""
    kind: str
    """``value``, ``metadata``, ``mutation`` or ``gradient``."""
    where: str | None = None
    """The tensor with the largest error relative to what is allowed."""
    severity: float | None = None
    """That error over what is allowed: above 1 is wrong; ``null`` where it is no number."""
    ratio: float | None = None
    """Root-mean-square error over eager's own, in that tensor."""
    worst: float | None = None
    """The largest absolute difference from float64 truth in that tensor."""
    index: tuple[int, ...] | None = None
    """Where in that tensor it is."""
    ulps: float | None = None
    """The same difference in units in the last place of the working dtype."""
    compared: int = 0
    """How many tensors and properties were compared."""


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one backend."""

    mode: Mode
    """``infer``: the model in eval mode, without gradients. ``train``: in training mode."""
    check: str
    """``forward``, ``gradients``, ``state`` (buffers and inputs), ``calls`` (again and again, with
    other values and at other addresses), ``step 2``, ``batch 3``, ..."""
    status: Status
    reason: str = ""
    """Why the status is not ``right``; one line."""
    proof: ProofRecord | None = None
    """``null`` where nothing was compared."""
    graphs: int | None = None
    """Graphs that were compiled for this check, beside those that were there."""
    usual_graphs: int | None = None
    """The same with Dynamo alone; fewer where the backend made a size a constant."""
    reference_backends: dict[str, Status] = {}
    """Of what failed: what became of it on torch's own backends below, the lowest first."""
    attributed_to: str = ""
    """The first of those that fails alike; empty where none does."""


class CurveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A training that runs freely: every step starts from where the last one ended.

    It is shown and not judged: honest errors grow from step to step.
    """

    steps: int
    learning_rate: float
    eager: tuple[float | None, ...]
    """The loss at each step; without a loss, what is descended on in its place; ``null``
    where it is not finite."""
    truth: tuple[float | None, ...]
    """Likewise, in float64."""
    backend: tuple[float | None, ...]
    drift: float | None = None
    """Distance of the trained parameters from truth's, over that of eager's."""


class BlameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the model it begins."""

    mode: Mode
    check: str
    """The check that failed."""
    found: Literal["alone", "own", "between", "not_found"]
    """``alone``: the module is wrong when it is compiled by itself, and calls no other. ``own``:
    it is wrong, and what it calls is right: its own operators are. ``between``: it is wrong when
    ``last`` is compiled together with what comes before it in the module, and not earlier.
    ``not_found``: nothing smaller than the model is wrong, or time ran out."""
    module: str
    """Its path in the model; empty for the model itself."""
    type: str
    forward: str
    """Where its class's forward is, ``file:line``."""
    called_at: str
    """The line that calls it, ``file:line: code``; the innermost that is not torch's."""
    last: str = ""
    """See ``found``."""
    status: Status = "wrong"
    reason: str = ""
    """How it fails alone."""
    proof: ProofRecord | None = None
    tried: int = 0
    """How many modules, and parts of modules, were compiled to find it."""
    notes: tuple[str, ...] = ()
    """What could not be tried, and why."""
    sentence: str


class BackendRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One backend on the model."""

    backend: str
    passed: bool
    """Whether every check was made and is right."""
    sentence: str
    checks: tuple[CheckRecord, ...]
    curve: CurveRecord | None = None
    blame: BlameRecord | None = None
    """Of the first check that failed; ``null`` where none did."""
    notes: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    workload: str
    backends: tuple[str, ...]
    modes: tuple[Mode, ...]
    dtype: str
    device: str
    seed: int
    steps: int
    batches: tuple[int, ...] | None
    """``null``: two others than the workload's own, chosen."""
    compile_mode: str | None = None
    """As torch.compile takes it, of every backend."""
    options: dict[str, Any] = {}
    """Likewise."""
    dynamic: bool | None = None
    """Likewise."""
    fullgraph: bool = False
    """Likewise."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole verification."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    versions: dict[str, str]
    settings: Settings
    sentence: str
    """The whole in one line."""
    results: tuple[BackendRecord, ...]
    isolation: Literal["process", "in_process"] = "process"
    """``in_process`` where backends ran in the process of who asked: cheats and crashes are not
    contained then."""
    notes: tuple[str, ...] = ()
    partial: bool = False
    """Whether it was interrupted: the last backend lacks checks, and those after it are missing."""

    @property
    def passed(self) -> bool:
        """Whether every backend passed."""
        return not self.partial and all(x.passed for x in self.results)
