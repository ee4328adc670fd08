"""Says what passes do where torch's own tools look: ``TORCH_LOGS`` and ``TORCH_TRACE``.

``TORCH_LOGS="+backbay.kit"``, or Python's logging, turns on the logger of this module. In a trace,
each pass that changed a graph has two artifacts with its name, which tlparse shows: the graph
before and after.
"""

import logging
import re
from collections.abc import Callable

from torch._logging import trace_structured  # type: ignore[attr-defined] # torch's own use it so
from torch.fx import GraphModule

from backbay.kit.passes import PassReport

log = logging.getLogger(__name__)

_TRACE = logging.getLogger("torch.__trace")
"""Torch's logger for traces; without a handler nothing is traced."""


def traced(run: Callable[[], PassReport], graph_module: GraphModule) -> PassReport:
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
