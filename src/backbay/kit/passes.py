"""A pass: one rewrite of a graph, with its level, its name, and what it did.

The decorator turns a plain function into one::

    @graph_pass(level="torch")
    def drop_dropout(graph_module, context):
        ...
        return how_many_changes
"""

import copy
import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch.fx import GraphModule, Node

import backbay
from backbay.errors import BackbayError, InputError
from backbay.graph.aten_rewrite import apply_aten
from backbay.graph.check import Before, Freshness, check, watched
from backbay.graph.match import NearMiss, Pattern
from backbay.graph.report import first_line
from backbay.graph.rewrite import Rewritten, apply
from backbay.graph.verify import verify
from backbay.kit.observing import Watch, current_watch
from backbay.kit.places import current_places
from backbay.kit.tracing import traced

Level = Literal[
    "torch",
    "aten",
    "inductor.pre_grad",
    "inductor.joint_pre",
    "inductor.joint_post",
    "inductor.post_grad_pre",
    "inductor.post_grad",
]
"""Where a pass runs: on Dynamo's graph; after AOTAutograd, on the functional forward and backward
graphs; or in one of Inductor's own hooks."""

LEVELS: tuple[Level, ...] = get_args(Level)


DYNAMO_GRAPHS = frozenset({"torch", "inductor.pre_grad"})
"""Levels whose graphs hold what the user wrote; the others hold functional ATen operators."""

_NONE: Mapping[Any, Any] = {}  # one object: patterns are traced once for each table


@dataclass(slots=True)
class PassContext:
    """What a pass may know beside the graph, and where it notes what it nearly did."""

    options: Mapping[str, Any] = field(default_factory=dict)
    near: list[NearMiss] = field(default_factory=list)
    level: Level = "torch"
    """Where the pass runs."""
    decompositions: Mapping[Any, Any] = field(default_factory=dict)
    """Of the graph's operators, where they are ATen's."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What else it has to say: shown as it is by ``backbay explain``."""
    inductor: dict[str, Any] = field(default_factory=dict)
    """Settings of Inductor that the pass wants for this graph, by their names as options. They hold
    where it runs on Dynamo's graph and Inductor is next, but for those that the user gave."""
    alone: bool = False
    """Whether the graph is one place, taken out to be timed: what all places of a graph decide
    together does not count."""

    def pays(self, rewrite: str, nodes: Sequence[Node]) -> bool:
        """Tell whether a rewrite is worth it at a place, as far as somebody timed it.

        Args:
            rewrite: its name.
            nodes: what it would replace.
        """
        return current_places().pays(rewrite, nodes)


Run = Callable[[GraphModule, PassContext], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One rewrite of a graph."""

    name: str
    run: Run
    """Changes the graph module in place, recompiles it where it did, and gives how many changes it
    made."""
    level: Level = "torch"
    sources: tuple[Any, ...] = ()
    """Further functions, modules or texts that decide what it does: kernels, tables."""

    def at(self, level: Level) -> "Pass":
        """Give the same pass at another level; it must be written for the graphs there."""
        return replace(self, level=level)

    def uuid(self) -> str:
        """Give a digest of all that decides what the pass does: its source, and Backbay's version.

        Inductor's caches take it into their keys: a pass that changes is never served stale.
        """
        parts = [backbay.__version__, self.name, self.level]
        parts += [_source(x) for x in (self.run, *self.sources)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did to one graph."""

    name: str
    changes: int
    seconds: float
    near: tuple[NearMiss, ...]
    """Where it nearly did something, with the first condition that failed."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else the pass had to say."""
    inductor: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Inductor that it wants."""


def graph_pass(
    *, level: Level = "torch", name: str | None = None, sources: tuple[Any, ...] = ()
) -> Callable[[Callable[..., int]], Pass]:
    """Make a pass of a function of a graph module, or of a graph module and its context."""
    if level not in LEVELS:
        raise InputError(f"there is no level {level!r}; levels: {', '.join(LEVELS)}")

    def made(function: Callable[..., int]) -> Pass:
        takes_context = len(inspect.signature(function).parameters) > 1
        run = function if takes_context else functools.wraps(function)(_without_context(function))
        return Pass(
            name=name or function.__name__, run=run, level=level, sources=(function, *sources)
        )

    return made


def rewrite_pass(
    *patterns: Pattern, name: str, level: Level = "torch", sources: tuple[Any, ...] = ()
) -> Pass:
    """Make a pass of patterns, tried in order.

    ``sources`` are the modules of the operators that it puts in: they decide what comes out.
    """

    def run(graph_module: GraphModule, context: PassContext) -> int:
        count = 0
        for pattern in patterns:
            done = _applied(pattern, graph_module, context)
            context.near += done.near
            count += done.count
        return count

    both = tuple(x for pattern in patterns for x in (pattern.match, pattern.replacement))
    conditions = tuple(x for pattern in patterns for x in pattern.conditions)
    tolerances = tuple(f"{x.title} {x.tolerance}" for x in patterns)
    decisive = (*both, *conditions, *tolerances, *sources)
    return Pass(name=name, run=run, level=level, sources=decisive)


def run_passes(
    passes: Sequence[Pass],
    graph_module: GraphModule,
    options: Mapping[str, Any] | None = None,
    decompositions: Mapping[Any, Any] | None = None,
    watch: Watch | None = None,
) -> list[PassReport]:
    """Run passes in order, and check the graph after each.

    A pass that torch's bisector wants left out is not run, and not reported; nor is one that an
    option of its own name switches off.

    Args:
        passes: what to run.
        graph_module: changed in place.
        options: of the backend; passes see them in their context.
        decompositions: those that made the graph, where it is of ATen operators.
        watch: who observes and whether to verify. Default: as it is in this context.

    Raises:
        GraphBroken: a pass left a graph that is not right; the error names the pass. Under
            `verified` that is also a graph that computes something else.
        BackbayError: a pass raised; its own exception is the cause.
    """
    from backbay.kit.bisect import left_out  # noqa: PLC0415 (it imports this module)

    known = _NONE if decompositions is None else decompositions
    given = PassContext(options or {}, decompositions=known)
    watch = watch or current_watch()
    reports, freshness = [], Freshness()
    chosen = [x for x in passes if given.options.get(x.name, True) is not False]
    for one in (x for x in chosen if not left_out(x)):
        context = replace(given, level=one.level, near=[], detail={}, inductor={})
        run = functools.partial(_run, one, graph_module, context, watch, freshness)
        reports.append(traced(run, graph_module))
    return reports


def _run(
    one: Pass, graph_module: GraphModule, context: PassContext, watch: Watch, freshness: Freshness
) -> PassReport:
    if watch.observer is None:
        return _checked(one, graph_module, context, watch, freshness)
    watch.observer.before(one, graph_module)
    try:
        report = _checked(one, graph_module, context, watch, freshness)
    except BackbayError as error:
        watch.observer.failed(one, graph_module, error)
        raise
    watch.observer.after(one, graph_module, report)
    return report


def _checked(
    one: Pass, graph_module: GraphModule, context: PassContext, watch: Watch, freshness: Freshness
) -> PassReport:
    who = f"pass {one.name}"
    before = Before.of(graph_module, freshness)
    kept = copy.deepcopy(graph_module) if watch.verifying else None
    start = time.perf_counter()
    try:
        with watched(graph_module, who), freshness.listening(graph_module):
            changes = one.run(graph_module, context)
    except BackbayError:
        raise
    except Exception as error:
        raise failed(who, graph_module, error) from error
    if not isinstance(changes, int):
        raise BackbayError(f"{who} gives {type(changes).__name__}: give how many changes it made")
    check(graph_module, before, who, freshness)
    seconds = time.perf_counter() - start
    if kept is not None:
        verify(kept, graph_module, who)
    return PassReport(
        one.name, int(changes), seconds, tuple(context.near), context.detail, context.inductor
    )


def failed(who: str, graph_module: GraphModule, error: Exception) -> BackbayError:
    """Give the error for code of an author that raised; Dynamo shows no more than its text."""
    place = first_line(graph_module.graph)
    return BackbayError(f"{who} raised {type(error).__name__}: {error} (the graph of {place})")


def _applied(pattern: Pattern, graph_module: GraphModule, context: PassContext) -> Rewritten:
    if context.level in DYNAMO_GRAPHS:
        return apply(pattern, graph_module)
    return apply_aten(pattern, graph_module, context.decompositions)


def _without_context(function: Callable[..., int]) -> Run:
    return lambda graph_module, _: function(graph_module)


def _source(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    try:
        return _written(thing)
    except TypeError:  # it has no hash: no function or module
        return repr(thing)


# Files are read for it, and every graph that is compiled asks.
@functools.lru_cache(maxsize=1024, typed=True)
def _written(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    try:
        module = inspect.getmodule(thing)
        if module is None:
            return inspect.getsource(thing)
        # A pass calls what stands beside it: its whole module counts. To find its own lines there
        # takes longer than all the rest.
        which = f"{getattr(thing, '__qualname__', '')} {getattr(code, 'co_firstlineno', '')}"
        return which + inspect.getsource(module)
    except (OSError, TypeError):  # made at run time, or in C
        return repr(thing) if code is None else code.co_code.hex() + repr(code.co_consts)
