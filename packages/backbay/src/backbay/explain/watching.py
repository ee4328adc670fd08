"""Watches a compilation: Dynamo through torch's structured trace, passes through the kit.

The structured trace is what ``TORCH_TRACE`` writes and ``tlparse`` reads: breaks, guards, reasons
to recompile. A handler of our own is put on its logger while we watch, and taken off again; nothing
of torch is patched. What other threads compile meanwhile is not taken for the workload's.
"""

import contextlib
import difflib
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch.fx import Graph, GraphModule

from backbay.errors import BackbayError, line_of
from backbay.explain.record import NearMissRecord, NodeRecord, PassRecord
from backbay.graph.nearness import nearest
from backbay.graph.report import listing, rows, summary
from backbay.graph.values import value_of
from backbay.kit.observing import observed_by
from backbay.kit.passes import Pass, PassReport
from backbay.registry import CompilerFn
from backbay.registry.bridge import CONTRACT

_TRACE = "torch.__trace"
_EVENTS = ("artifact", "compilation_metrics", "create_symbol", "dynamo_cpp_guards_str")
_TEXTS = (str, int, float, bool, type(None))
_ROOT = re.compile(r"^L\['\w+'\]\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of torch's structured trace."""

    kind: str
    """Its kind; of an artifact, the artifact's name."""
    call: int
    compile_id: str
    data: Any
    payload: str


@dataclass(slots=True)
class Stage:
    """Passes that ran one after the other on one graph."""

    graph: str
    before: tuple[NodeRecord, ...]
    lines: list[str]
    """The graph as it is now."""
    after: tuple[NodeRecord, ...] | None = None
    passes: list[PassRecord] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Captured:
    """One graph that Dynamo handed over."""

    compile_id: str
    call: int
    nodes: tuple[NodeRecord, ...]
    operators: dict[str, int]
    groups: tuple[tuple[str, ...], ...]
    stages: list[Stage] = field(default_factory=list)


class Watch:
    """What is seen of a compilation, call by call."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.graphs: list[Captured] = []
        self.call = 0
        """The call that is going on."""
        self._compiling: Captured | None = None
        self._before: list[str] = []

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch until the block ends."""
        logger, handler = logging.getLogger(_TRACE), _Handler(self)
        # First, not last: torch's own handler takes itself off the list at its first event, and
        # whoever stands behind it misses that one.
        logger.handlers.insert(0, handler)
        try:
            with observed_by(self, nearest=nearest):
                yield
        finally:
            logger.removeHandler(handler)

    @contextlib.contextmanager
    def compiling(self, graph_module: GraphModule) -> Iterator[None]:
        """Note a graph as Dynamo hands it over; passes that run until the block ends are its."""
        found = summary(graph_module.graph)
        self._compiling = Captured(
            compile_id=_compile_id(),
            call=self.call,
            nodes=nodes_of(graph_module.graph),
            operators=dict(found.operators.most_common()),
            groups=found.groups,
        )
        self.graphs.append(self._compiling)
        try:
            yield
        finally:
            self._compiling = None

    # -- as an observer of passes

    def before(self, one: Pass, graph_module: GraphModule) -> None:
        """Note the graph that a pass is about to get."""
        graph = self._graph()
        if graph is None:
            return
        self._before = listing(graph_module.graph)
        which = _which(one)
        last = graph.stages[-1] if graph.stages else None
        if last is None or last.graph != which or last.lines != self._before:
            before = nodes_of(graph_module.graph)
            graph.stages.append(Stage(which, before, self._before))

    def after(self, one: Pass, graph_module: GraphModule, report: PassReport) -> None:
        """Note what a pass did."""
        near = (
            NearMissRecord(
                pattern=x.pattern, node=x.node, reason=x.reason, line=line_of(x.stack_trace)
            )
            for x in report.near
        )
        detail = {
            **{str(key): value for key, value in report.detail.items()},
            **{f"Inductor's {key}": value for key, value in report.inductor.items()},
        }
        record = PassRecord(
            name=one.name,
            level=one.level,
            changes=report.changes,
            near=tuple(dict.fromkeys(near)),
            detail={k: v if isinstance(v, _TEXTS) else str(v) for k, v in detail.items()},
        )
        self._note(graph_module, record)

    def failed(self, one: Pass, graph_module: GraphModule, error: BackbayError) -> None:
        """Note that a pass raised, or left a graph that is not right."""
        record = PassRecord(name=one.name, level=one.level, changes=0, error=str(error))
        self._note(graph_module, record)

    def _note(self, graph_module: GraphModule, record: PassRecord) -> None:
        graph = self._graph()
        if graph is None:
            return
        stage = graph.stages[-1]
        now = listing(graph_module.graph)
        if now != self._before:
            diff = difflib.unified_diff(
                self._before, now, f"before {record.name}", f"after {record.name}", lineterm=""
            )
            record = msgspec.structs.replace(record, diff="\n".join(diff))
            stage.after = nodes_of(graph_module.graph)
            stage.lines = now
        stage.passes.append(record)

    def _graph(self) -> Captured | None:
        if self._compiling is not None:
            return self._compiling
        # A backward graph that is compiled when it is first needed: torch restores the compile id.
        here = _compile_id()
        return next((x for x in reversed(self.graphs) if x.compile_id == here), None)


class Capturing:
    """A backend that shows a watch each graph, and hands it on to another as it is."""

    def __init__(self, inner: CompilerFn, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self.__name__ = getattr(inner, "__name__", type(inner).__name__)

    def __call__(self, graph_module: GraphModule, inputs: Sequence[Any], **given: Any) -> Any:
        """Note the graph, then compile it."""
        with self._watch.compiling(graph_module):
            return self._inner(graph_module, inputs, **given)

    def __getattr__(self, name: str) -> Any:
        # What Dynamo asks of a backend is the inner one's to answer.
        if name in {*CONTRACT, "compiler_name"}:
            return getattr(self._inner, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


class _Handler(logging.Handler):
    """Keeps the entries of the structured trace that we read; what it raised, Dynamo would meet."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        kind = next((x for x in _EVENTS if x in metadata), None)
        if kind is None or record.thread != self._thread:
            return
        data = metadata[kind]
        self._watch.events.append(
            Event(
                kind=str(data.get("name")) if kind == "artifact" else kind,
                call=self._watch.call,
                compile_id=f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}",
                data=data,
                payload=str(getattr(record, "payload", "") or ""),
            )
        )


def _compile_id() -> str:
    return str(torch._guards.CompileContext.current_compile_id())  # noqa: SLF001 (as in its logs)


def _which(one: Pass) -> str:
    """Return the graph that a pass runs on; after AOTAutograd, that is torch's name for it."""
    if one.level in {"torch", "inductor.pre_grad"}:
        return "dynamo"
    from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name  # noqa: PLC0415 (it is running)

    name = get_aot_graph_name()
    kinds = ("forward", "backward", "inference", "joint")
    return next((x for x in kinds if f"_{x}" in name), name)


def nodes_of(graph: Graph) -> tuple[NodeRecord, ...]:
    """Return a record of each node of a graph, in order: its shape, the user's line, its module."""
    found = []
    for node, row in zip(graph.nodes, rows(graph), strict=True):
        stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
        paths = [str(x[0]) for x in stack.values() if isinstance(x, tuple) and x]
        found.append(
            NodeRecord(
                name=row.name,
                op=row.op,
                target=row.target,
                shape=row.shape,
                dtype=row.dtype,
                device=str(getattr(value_of(node), "device", "")),
                line=row.line,
                module=_ROOT.sub("", paths[-1]) if paths else "",
                inputs=tuple(x.name for x in node.all_input_nodes),
            )
        )
    return tuple(found)
