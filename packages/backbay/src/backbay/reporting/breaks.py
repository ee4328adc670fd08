"""Graph breaks, as torch says them: what happened, why, and what to change; and how many there are.

Torch writes a break to its logs as text, always of one form (``format_graph_break_message`` in
``torch/_dynamo/exc.py``, the same from 2.11 to 2.15). What is not of that form is kept as it is.

A break is one line of the user's for one reason, wherever breaks are counted. Torch's own counter
has one that is met while inlining once for each function that it inlines, and no branch on values.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from backbay.reporting.lines import Place, innermost, own, places

_FORM = re.compile(
    r"(?:^|\n)(?P<reason>[^\n]+)\n(?:  Higher Order Operator: [^\n]*\n)?"
    r"  Explanation: (?P<explanation>.*?)"
    r"(?P<hints>(?:\n  Hint: .*?)*)"
    r"\n+  Developer debug context:(?P<context>.*?)"
    r"(?=\n\n|\Z)(?:\n\n For more details[^\n]*?: (?P<url>\S+))?",
    re.DOTALL,
)
_SKIPS = ("Skipping the function", "Skipping the frame", "will skip tracing the frame")
_LOWER = "\n\n*** While handling this graph break"
_STACK = "User code traceback:"
LIMIT = "recompile limit exceeded"
"""In the reason of what torch reports as a break and is none: it is no line of the user's."""
_FAILURES = {"Unsupported", "UserError"}
"""Types of failures by which torch leaves a function to run eagerly."""
_FOR_DEVELOPERS = re.compile(
    r"report an issue|file an issue|TESTING_ONLY|add support for it|Dynamo bug|"
    r"may have been caused by an earlier graph break|unlikely that Dynamo will ever",
)
"""In hints that are of no use to who reads them: to report it, or to change torch itself."""
_LOGGER = "torch._dynamo.symbolic_convert.__graph_breaks"
_RAISED = re.compile(r"^torch\._dynamo\.exc\.\w+: ", re.MULTILINE)


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """One place where Dynamo could not go on."""

    reason: str
    explanation: str
    hints: tuple[str, ...]
    """What to change, in torch's own words, without what only its developers can do."""
    context: str
    """Torch's note for developers."""
    url: str
    """Torch's page on this kind of break."""
    line: str
    stack: tuple[str, ...]
    """The user's lines that led there, the outermost first."""
    skipped: bool
    """Whether the whole function runs eagerly: it could not be resumed after the break."""


def parse(text: str) -> GraphBreak:
    """Return a break from its text, which has the user's traceback in it."""
    said, _, rest = text.partition("\nTraceback (most recent call last)")
    head, _, stack = said.partition(_STACK)
    found = list(places(stack or head))
    raised = _RAISED.split(rest)[-1] if "Graph Break Reason: " not in head else ""
    message = raised or head.partition("Graph Break Reason: ")[2]
    return _broken(
        message or head,
        line=innermost(found),
        stack=tuple(str(x) for x in own(found)),
        skipped=any(x in text for x in _SKIPS),
    )


def parse_failure(reason: str, file: str | None, number: int | None) -> GraphBreak:
    """Return a break of which torch tells only in its metrics: a function that runs eagerly."""
    line = str(Place(file, number or 0, "")) if file else ""
    return _broken(reason, line=line, stack=(line,) if line else (), skipped=True)


def is_failure(kind: object, reason: object) -> bool:
    """Whether torch's metrics of a function say that it runs eagerly, for a break.

    Args:
        kind: the ``fail_type``.
        reason: the ``fail_reason``.
    """
    return kind in _FAILURES and LIMIT not in str(reason)


def useful(hints: Sequence[str]) -> tuple[str, ...]:
    """Return the hints that a reader can follow."""
    return tuple(x for x in hints if not _FOR_DEVELOPERS.search(x))


class BreakCounter(logging.Handler):
    """Counts the breaks of what this thread compiles, without torch's structured trace.

    That would have torch write out every graph, and be felt in the time that compiling takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._seen: dict[tuple[str, str], GraphBreak] = {}
        self._known = set[str]()
        """Compile ids that a break was logged of."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch until the block ends."""
        from torch._dynamo import utils  # noqa: PLC0415 (as late as can be)

        logger = logging.getLogger(_LOGGER)
        level, propagate = logger.level, logger.propagate
        shown = logger.isEnabledFor(logging.DEBUG)
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = propagate and shown
        utils.graph_break_dup_warning_checker.reset()  # of one it has told, it tells no more
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Note a break."""
        text = record.getMessage()
        if record.thread != self._thread or "Graph break in user code" not in text:
            return
        from torch._guards import CompileContext  # noqa: PLC0415 (as above)

        found = parse(text)
        self._seen.setdefault((found.reason, found.line), found)
        self._known.add(str(CompileContext.current_compile_id()))

    def breaks(self) -> tuple[GraphBreak, ...]:
        """Return the breaks, each once; torch's metrics must not have been cleared meanwhile."""
        from torch._dynamo import utils  # noqa: PLC0415 (as above)

        seen = dict(self._seen)
        for metrics in utils.get_compilation_metrics():
            if str(metrics.compile_id) in self._known:
                continue
            if not is_failure(metrics.fail_type, metrics.fail_reason):
                continue
            found = parse_failure(
                str(metrics.fail_reason),
                metrics.fail_user_frame_filename,
                metrics.fail_user_frame_lineno,
            )
            seen.setdefault((found.reason, found.line), found)
        return tuple(seen.values())


def _broken(text: str, **known: Any) -> GraphBreak:
    # What torch met while it handled the break comes after it; the break itself comes first.
    first = text.partition(_LOWER)[0]
    found = _FORM.search(first)
    if found is None:
        lines = [x.strip() for x in first.splitlines() if x.strip()] or ["unknown"]
        explanation = " ".join(lines[1:])
        return GraphBreak(
            reason=lines[0], explanation=explanation, hints=(), context="", url="", **known
        )
    hints = [x for x in found["hints"].split("\n  Hint: ") if x.strip()]
    return GraphBreak(
        reason=_flat(found["reason"]),
        explanation=_flat(found["explanation"]),
        hints=useful([_flat(x) for x in hints]),
        context=_flat(found["context"]),
        url=found["url"] or "",
        **known,
    )


def _flat(text: str) -> str:
    return " ".join(text.split())
