"""Runs passes in order, checks the graph after each, and tells torch's logs and traces of them.

``TORCH_LOGS="+backbay.kit"``, or Python's logging, turns on the logger of this module. In a trace
(``TORCH_TRACE``), each pass that changed a graph has two artifacts with its name, which tlparse
shows: the graph before and after.
"""

import copy
import functools
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._logging import trace_structured  # type: ignore[attr-defined] # torch's own use it so
from torch.fx import GraphModule

from backbay.errors import BackbayError
from backbay.graph.check import Before, Freshness, check, watched
from backbay.graph.report import first_line
from backbay.graph.values import unwatched
from backbay.kit.bisect import left_out
from backbay.kit.observing import Watch, current_watch
from backbay.kit.passes import Pass, PassContext, PassReport

log = logging.getLogger(__name__)
_TRACE = logging.getLogger("torch.__trace")
"""Torch's logger for traces; without a handler nothing is traced."""

MOST_NEAR = 1_000
"""Near misses that a report holds: those of a graph of some thousand nodes."""

_NONE: Mapping[Any, Any] = {}  # one object: patterns are traced once for each table


def run_passes(
    passes: Sequence[Pass],
    graph_module: GraphModule,
    options: Mapping[str, Any] | None = None,
    decompositions: Mapping[Any, Any] | None = None,
    watch: Watch | None = None,
) -> list[PassReport]:
    """Run passes in order, and check the graph after each; return what each did.

    A pass that torch's bisector wants left out is not run, and not reported; nor is one that an
    option of its own name switches off.

    Args:
        passes: what to run.
        graph_module: changed in place.
        options: of the backend; passes have their own among them as fields.
        decompositions: those that made the graph, where it is of ATen operators.
        watch: who observes and whether to verify. Default: as it is in this context.

    Raises:
        GraphBroken: a pass left a graph that is not right; the error names the pass. Under
            `verified` that is also a graph that computes something else.
        BackbayError: a pass raised; its own exception is the cause.
    """
    known = _NONE if decompositions is None else decompositions
    given = options or {}
    watch = watch or current_watch()
    reports, freshness = [], Freshness()
    chosen = [x for x in (one.configured(given) for one in passes) if x.enabled]
    for number, one in enumerate(chosen):
        if left_out(one.name, one.level):
            continue
        context = PassContext(
            given,
            decompositions=known,
            level=one.level,
            name=one.name,
            nearest=watch.nearest,
            is_hoisted=any(x.hoists for x in chosen[number + 1 :]),
        )
        run = functools.partial(_run, one, graph_module, context, watch, freshness)
        with unwatched():
            reports.append(_traced(run, graph_module))
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
        from backbay.graph.verify import verify  # noqa: PLC0415 (3 ms, for who asks to verify)

        verify(kept, graph_module, who)
    near = tuple(context.near[:MOST_NEAR])
    return PassReport(one.name, int(changes), seconds, near, context.detail, context.inductor)


def failed(who: str, graph_module: GraphModule, error: Exception) -> BackbayError:
    """Return the error for code of an author that raised; Dynamo shows no more than its text."""
    place = first_line(graph_module.graph)
    return BackbayError(f"{who} raised {type(error).__name__}: {error} (the graph of {place})")


def _traced(run: Callable[[], PassReport], graph_module: GraphModule) -> PassReport:
    """Run one pass and say what it did; graphs are written out only where somebody reads them."""
    wanted = bool(_TRACE.handlers) or log.isEnabledFor(logging.DEBUG)
    before = _text(graph_module) if wanted else ""
    report = run()
    for near in report.near:
        log.debug("pass %s: nearly %s at %s: %s", report.name, near.pattern, near.node, near.reason)
    if not report.changes:
        log.debug("pass %s: no change", report.name)
        return report
    log.info("pass %s: %dx in %.1f ms", report.name, report.changes, report.seconds * 1e3)
    if wanted:
        after = _text(graph_module)
        _artifact(report.name, "before", before)
        _artifact(report.name, "after", after)
        log.debug("pass %s: before\n%s\nafter\n%s", report.name, before, after)
    return report


def _artifact(name: str, when: str, text: str) -> None:
    safe = re.sub(r"[^\w.-]", "_", name)  # tlparse makes a file of it
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"backbay_pass_{safe}_{when}", "encoding": "string"},
        payload_fn=lambda: text,
    )


def _text(graph_module: GraphModule) -> str:
    text: str = graph_module.print_readable(print_output=False)
    return text
