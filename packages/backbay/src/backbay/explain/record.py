"""What an explanation says, as data: the schema of ``backbay explain --json``.

Plain structures without torch in them, as a race's: what draws texts and pages needs no torch. A
``line`` is the user's own, ``file:line: code``, and empty where nobody knows it.
"""

from typing import Any, Literal

import msgspec

from backbay.decisions import Arm
from backbay.explain.codes import Severity
from backbay.reporting.breaks import GraphBreak
from backbay.reporting.reasons import Kind
from backbay.workloads.setup import Mode

SCHEMA = "backbay.explain/1"


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a graph."""

    name: str
    op: str
    """As torch.fx has it: ``placeholder``, ``call_function``, ``output``, ..."""
    target: str
    shape: str
    """``4x8``; with symbols where a size is dynamic; empty for what is no tensor."""
    dtype: str
    device: str
    """As torch spells it; empty for what is no tensor."""
    line: str
    module: str
    """Path of the innermost module that the node was traced in; empty outside of all."""
    inputs: tuple[str, ...]
    """Names of the nodes that it uses."""


class NearMissRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pass nearly did something."""

    pattern: str
    node: str
    reason: str
    """The first condition that failed."""
    line: str


class PassRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did to one graph."""

    name: str
    level: str
    changes: int
    """Zero: it ran and did not fire."""
    near: tuple[NearMissRecord, ...] = ()
    diff: str = ""
    """The graph before and after it, as a unified diff; empty where they are the same."""
    detail: dict[str, Any] = {}
    """What else the pass had to say."""
    error: str = ""
    """What it raised, or what is wrong with the graph that it left."""


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Passes that ran one after the other on one graph."""

    graph: str
    """Which one they ran on: ``dynamo``, ``forward``, ``backward``, ``inference`` or ``joint``."""
    passes: tuple[PassRecord, ...]
    before: tuple[NodeRecord, ...]
    after: tuple[NodeRecord, ...] | None
    """``null`` where no pass changed anything."""


class GuardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must hold for a compiled graph to be used again."""

    group: str
    """``shapes``, ``tensors``, ``values``, ``types``, ``identities``, ``contents``, ``aliasing``,
    ``markings`` (of sizes as dynamic), ``torch's state`` or ``other``."""
    kind: str
    """As torch calls it, for example ``TENSOR_MATCH``."""
    source: str
    """The expression that is looked at, as torch spells it: ``L['x']`` is the local ``x``."""
    says: str
    """What is asked of it, in words where we have some."""
    line: str


class GraphRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One graph that Dynamo handed to the backend."""

    number: int
    compile_id: str
    """As in torch's own logs: frame and version, ``0/1``."""
    call: int
    """The call that it was compiled in: a position in ``calls``."""
    function: str
    """The function that was traced, and where it is defined."""
    dynamic: dict[str, str]
    """Symbol to the size that it stands for, for example ``s77`` to ``L['x'].size()[0]``."""
    nodes: tuple[NodeRecord, ...]
    operators: dict[str, int]
    """Target to how often it is called; the most frequent first."""
    groups: tuple[tuple[str, ...], ...]
    """Names of nodes that a code generator can fuse: connected pointwise operators."""
    guards: tuple[GuardRecord, ...]
    stages: tuple[StageRecord, ...]
    """What the backend's passes did; empty where it has none."""


class BreakRecord(GraphBreak, frozen=True, kw_only=True):
    """One place where Dynamo could not go on, in which function, and in which calls."""

    function: str
    """The function that was traced, and where it is defined."""
    calls: tuple[int, ...]
    """The calls in which it happened: positions in ``calls``."""


class ReasonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why one version of a function was not good enough."""

    version: str
    """The compile id of that version."""
    failed: str
    """The guard that failed, or what differed."""
    line: str
    hint: str
    """What torch says to do about it."""
    says: str
    """The same in the user's words."""


class RecompileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One function that was compiled again."""

    compile_id: str
    function: str
    reasons: tuple[ReasonRecord, ...]
    """One for each version that there was, the newest first."""
    dynamic: dict[str, str]
    """Symbol to the size that the new version takes as it comes: torch's automatic dynamic shapes;
    empty where it is static."""
    kind: Kind
    """What changed: a ``size``, a Python ``value``, or something ``other``."""
    subject: str
    """What changed, as a noun: ``the size of x's dimension 0``."""
    says: str
    """How it changed, in the user's words."""
    was: int | None = None
    """The size that was compiled for; ``null`` where another thing changed, or nobody says."""
    line: str
    """Where the compiled code depends on it."""
    compile_s: float | None
    """Seconds that it took; ``null`` where torch doesn't say."""
    limit: bool
    """Whether it was not compiled, since torch's limit of recompiles was reached."""


class ProblemRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was raised."""

    stage: Literal["eager", "compiled"]
    """``eager``: the model itself, uncompiled."""
    error: str
    """Its kind and message."""
    line: str
    raised_at: str
    """Where it was raised, outside of torch: in a backend's own code, for example."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the compiled workload."""

    name: str
    """``first``, ``again``, ``batch 4 to 5``, or ``further 1``."""
    graphs: int
    """How many graphs were compiled in it."""
    recompiles: tuple[RecompileRecord, ...] = ()
    problem: ProblemRecord | None = None


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know or to change; the same wherever findings are reported."""

    code: str
    """``BB101``: it never changes its meaning."""
    severity: Severity
    """``error``: it does not run, or not compiled. ``warning``: it costs time at every call, or at
    many. ``note``: it may be as it should be."""
    message: str
    """What it is, in the user's words."""
    line: str
    fixes: tuple[str, ...]
    """What to change."""
    count: int
    """How often it was met."""
    cost_s: float | None
    """Seconds that compiling because of it took; ``null`` where that is not known."""
    calls: tuple[int, ...]
    """The calls in which it was met: positions in ``calls`` of the explanation."""
    page: str
    """Its section of the documentation."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    workload: str
    backend: str | None
    """``null``: graphs are listed and run as they are."""
    mode: Mode
    dtype: str
    device: str
    seed: int
    compile_mode: str | None = None
    """As torch.compile takes it."""
    options: dict[str, Any] = {}
    """Likewise."""
    dynamic: bool | None = None
    """Likewise."""
    fullgraph: bool = False
    """Likewise."""

    @property
    def asked(self) -> str:
        """How the workload is compiled, in words."""
        if self.backend is None:
            arm = "no backend"
        else:
            arm = str(Arm(backend=self.backend, mode=self.compile_mode, options=self.options))
        dynamic = "" if self.dynamic is None else f"dynamic={self.dynamic}"
        return " ".join(filter(None, (arm, dynamic, "fullgraph" if self.fullgraph else "")))


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What torch.compile and a backend did with a workload."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    versions: dict[str, str]
    settings: Settings
    sentence: str
    """The whole in one line."""
    findings: tuple[FindingRecord, ...]
    """What to know and to change, the gravest first."""
    graphs: tuple[GraphRecord, ...]
    breaks: tuple[BreakRecord, ...]
    calls: tuple[CallRecord, ...]
    problem: ProblemRecord | None
    """The first that was raised; ``null`` where everything ran."""
    notes: tuple[str, ...]
    """What a reader must know, and what was not looked at and why."""
