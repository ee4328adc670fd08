"""Why compiled code may be slow, in words: what was compiled again, and what was not compiled."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torch._dynamo import utils

from backbay.reporting import wording
from backbay.reporting.breaks import BreakCounter
from backbay.reporting.reasons import parse, reason

_MOST = 2
"""Reasons that are told; the rest is a number."""
_LIMIT = 8
"""Torch's own: a function that was compiled so often runs uncompiled from then on."""


_watching = contextlib.ExitStack()
_counter = BreakCounter()


def forget() -> None:
    """Begin to watch, for as long as the process lives or until it is called again."""
    global _counter  # noqa: PLW0603 (a process watches one arm)
    utils.clear_compilation_metrics()
    utils.counters.clear()
    _watching.close()
    _counter = BreakCounter()
    _watching.enter_context(_counter.on())


def breaks() -> int:
    """Return how many graph breaks there have been since `forget`, as explain and verify count."""
    return len(_counter.breaks())


def reasons() -> Iterator[str]:
    """Yield what has happened since `forget` that costs time in each call, or cost it once."""
    yield from _recompiled()
    yield from _broken()


def _recompiled() -> Iterator[str]:
    found = [x for x in utils.get_compilation_metrics() if getattr(x, "recompile_reason", None)]
    for metrics in found[:_MOST]:
        where = f"{Path(metrics.co_filename or '').name}:{metrics.co_firstlineno}"
        why = reason(parse(str(metrics.recompile_reason)).guard).words
        yield f"compiled {metrics.co_name} ({where}) again: {why}"
    if len(found) > _MOST:
        yield f"compiled again {len(found)} times in all"
    if len(found) >= _LIMIT:
        yield (
            f"a model outside of a race runs uncompiled after {_LIMIT} compilations of one function"
            ": raise torch._dynamo.config.recompile_limit"
        )


def _broken() -> Iterator[str]:
    found = _counter.breaks()
    if not found:
        return
    count = wording.counted(len(found), "graph break")
    yield f"{count}, where the model runs uncompiled: {found[0].reason}"
