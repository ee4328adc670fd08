"""Watches Inductor compile: what it schedules, what it fuses and why not, what it generates.

Nothing is parsed that torch has as data. Scheduled nodes are handed to a pass of Inductor's own
that runs after fusion; why two were not fused is an object on Inductor's fusion log; which nodes of
the graph and lines of the user each kernel computes are artefacts of torch's structured trace, as
is the generated code.
"""

import ast
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch._functorch.config
import torch._inductor.config
from torch._guards import CompileContext

Direction = Literal["forward", "backward", "inference"]

_TRACE = "torch.__trace"
_FUSION = "torch._inductor.scheduler.__fusion"
_MAPPINGS = "inductor_provenance_tracking_node_mappings"
_STACKS = "inductor_provenance_tracking_kernel_stack_traces"
_WATCHED = {"trace.provenance_tracking_level": 1, "cpp.enable_kernel_profile": True}
"""Both sides of a comparison are compiled so: a kernel's mark for the profiler takes time, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What becomes one kernel, or a part of one: a node of Inductor's schedule after fusion."""

    operations: frozenset[str]
    """Names of the nodes that were fused, as Inductor numbers them: ``op3``."""
    origins: tuple[str, ...]
    """Names of the nodes of the lowered graph that it computes."""
    operators: tuple[str, ...]
    """Their targets."""
    own: str
    """Of an extern kernel, the node that it is the result of."""
    stacks: tuple[str, ...]
    """Of the user's lines, as Python prints them: of what it computes, else of what it reads."""
    extern: bool
    template: bool
    reduction: bool
    reads: frozenset[str]
    """Names of buffers."""
    writes: frozenset[str]
    bytes: int | None
    floating_operations: int | None


@dataclass(slots=True, kw_only=True)
class Kernel:
    """One call of a kernel in the generated code."""

    name: str
    """With its number: ``cpp_fused_add_0:1``."""
    stacks: tuple[str, ...]
    """Of the user's lines, as Python prints them."""
    origins: frozenset[str]
    parts: list[Scheduled] = field(default_factory=list)

    @property
    def function(self) -> str:
        """Its name without the number."""
        return self.name.rpartition(":")[0]

    @property
    def operator(self) -> str:
        """Of an extern kernel, the target of the graph's node that calls it."""
        space, _, name = self.function.partition("extern_kernels.")
        return f"aten.{name}.default" if name else space.removeprefix("torch.ops.")

    def take(self, node: Scheduled) -> None:
        """Compute a scheduled node, too."""
        self.parts.append(node)
        # Of a node that Inductor's own passes put in, torch knows no line.
        self.stacks = self.stacks or node.stacks

    @property
    def extern(self) -> bool:
        """Whether torch, and not Inductor, has its code."""
        return self.function.startswith(("extern_kernels.", "torch.ops.", "aten."))


@dataclass(slots=True, kw_only=True)
class Graph:
    """One graph as Inductor compiled it."""

    compile_id: str
    direction: Direction
    schedule: tuple[Scheduled, ...]
    unfused: dict[tuple[str, str], str]
    """Two names of operations, or of several joined by ``_``, to why they were not fused."""
    code: str = ""
    kernels: list[Kernel] = field(default_factory=list)

    def sources(self) -> dict[str, str]:
        """Return the source of each kernel that was generated, by its name."""
        return dict(_sources(self.code))


class InductorWatch:
    """What is seen of Inductor, graph by graph: of all threads, since autograd has its own."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self._unfused: dict[tuple[str, str], str] = {}
        self._origins: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch until the block ends."""
        trace, fusion = logging.getLogger(_TRACE), logging.getLogger(_FUSION)
        level, propagate = fusion.level, fusion.propagate
        shown = fusion.isEnabledFor(logging.DEBUG)
        events, reasons = _Each(self._event), _Each(self._reason)
        before: Callable[..., Any] | None = torch._inductor.config._post_fusion_custom_pass  # noqa: SLF001 (its one hook that has the schedule)

        def scheduled(nodes: list[Any]) -> list[Any]:
            found: list[Any] = nodes if before is None else before(nodes)
            self._scheduled(found)
            return found

        # First, not last: torch's own handler takes itself off the list at its first event.
        trace.handlers.insert(0, events)
        fusion.addHandler(reasons)
        fusion.setLevel(logging.DEBUG)
        fusion.propagate = propagate and shown
        try:
            with torch._inductor.config.patch({"_post_fusion_custom_pass": scheduled}):  # noqa: SLF001 (likewise)
                yield
        finally:
            trace.removeHandler(events)
            fusion.removeHandler(reasons)
            fusion.setLevel(level)
            fusion.propagate = propagate

    def _scheduled(self, nodes: Sequence[Any]) -> None:
        from torch._inductor.virtualized import V  # noqa: PLC0415 (Inductor is at work)

        direction: Direction = "forward"
        if V.graph.is_backward:
            direction = "backward"
        elif V.graph.is_inference:
            direction = "inference"
        unfused, self._unfused = self._unfused, {}
        self.graphs.append(
            Graph(
                compile_id=str(CompileContext.current_compile_id()),
                direction=direction,
                schedule=tuple(_node(x) for x in nodes),
                unfused=unfused,
            )
        )

    def _reason(self, record: logging.LogRecord) -> None:
        why: Any = record.msg  # an object of Inductor's, not a text
        if not hasattr(why, "reason"):
            return
        self._unfused[why.name1, why.name2] = why.reason % why.args if why.args else why.reason

    def _event(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        if not self.graphs:
            return
        graph, payload = self.graphs[-1], str(getattr(record, "payload", None) or "")
        if "inductor_output_code" in metadata:
            graph.code = payload
        name = metadata.get("artifact", {}).get("name")
        if name == _MAPPINGS:
            self._origins = json.loads(payload).get("cppCodeToPost", {})
        if name == _STACKS:
            stacks = json.loads(payload)
            names = sorted({**self._origins, **stacks}, key=lambda x: int(x.rpartition(":")[2]))
            graph.kernels = [
                Kernel(
                    name=x,
                    stacks=tuple(stacks.get(x, ())),
                    origins=frozenset(self._origins.get(x, ())),
                )
                for x in names
            ]
            _assign(graph)


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Compile as everything is compiled that is compared: marked for the profiler, uncached."""
    uncached = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),  # noqa: SLF001 (public)
        torch._inductor.config.patch(_WATCHED | uncached),  # noqa: SLF001 (public)
    ):
        yield


def _assign(graph: Graph) -> None:
    """Assign each scheduled node to the kernel that computes it.

    That is the kernel with its origins and the fewest others: a kernel of several nodes has them
    too, where a node is computed again inside of it. Of an extern kernel torch may not know the
    origin: then it is the next of its name.
    """
    left = list[Scheduled]()
    for node in graph.schedule:
        wanted = {node.own} if node.extern and node.own else set(node.origins)
        fitting = [x for x in graph.kernels if x.extern == node.extern and wanted <= x.origins]
        if wanted and fitting:
            min(fitting, key=lambda x: len(x.origins)).take(node)
        elif node.extern:
            left.append(node)
    for kernel in (x for x in graph.kernels if x.extern and not x.parts):
        for node in [x for x in left if kernel.operator in x.operators][:1]:
            kernel.take(node)
            left.remove(node)


def _node(node: Any) -> Scheduled:
    leaves = [x for x in node.get_nodes() if getattr(x, "node", None) is not None]
    origins = {x.name: x for leaf in leaves for x in leaf.node.get_origins()}
    own = node.node.get_origin_node() if node.is_extern() and node.node is not None else None
    return Scheduled(
        operations=frozenset(x.get_name() for x in node.get_nodes()),
        origins=tuple(origins),
        operators=tuple(dict.fromkeys(str(x.target) for x in origins.values())),
        own=own.name if own is not None else "",
        stacks=tuple(dict.fromkeys(filter(None, map(_stack, origins.values())))),
        extern=bool(node.is_extern()),
        template=bool(node.is_template()),
        reduction=bool(node.is_reduction()),
        reads=frozenset(x.name for x in node.read_writes.reads),
        writes=frozenset(x.name for x in node.read_writes.writes),
        bytes=_counted(node.get_read_write_buffers_sizes),
        floating_operations=_counted(node.estimate_flops),
    )


def _stack(node: Any) -> str:
    """Return the stack of a node of the graph; of one that has none, that of the nearest node.

    Those that it reads count first, then those that read it.
    """
    for near in (lambda x: x.all_input_nodes, lambda x: list(x.users)):
        seen, level = {node}, [node]
        while level:
            found = next((x.meta["stack_trace"] for x in level if x.meta.get("stack_trace")), "")
            if found:
                return str(found)
            level = [x for one in level for x in near(one) if x not in seen]
            seen.update(level)
    return ""


def _counted(count: Callable[[], Any]) -> int | None:
    """Return what Inductor counts; it raises where it can't."""
    try:
        found = count()
        return int(found) if found else None
    except Exception:  # noqa: BLE001 (a number that is missing must not stop a compilation)
        return None


def _sources(code: str) -> Iterator[tuple[str, str]]:
    """Yield name and source of what a generated module assigns from ``async_compile``."""
    for statement in ast.parse(code).body if code else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=args)):
                texts = [x.value for x in args if isinstance(x, ast.Constant)]
                source = next((x for x in reversed(texts) if isinstance(x, str)), "")
                if "\n" in source:
                    yield name, source.strip("\n")


class _Each(logging.Handler):
    """Hands on each record; what was raised would reach the compiler."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record)
        except Exception:  # noqa: BLE001 (as logging does it: a fault in here is reported there)
            self.handleError(record)
