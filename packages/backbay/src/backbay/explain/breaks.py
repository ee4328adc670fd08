"""Graph breaks, as torch says them: what happened, why, and what to change.

Torch writes a break to its structured trace as text, always of one form (``format_graph_break_
message`` in ``torch/_dynamo/exc.py``, the same from 2.11 to 2.15). What is not of that form is
kept as it is.
"""

import re
from typing import Any

from backbay.explain import advice
from backbay.explain.record import BreakRecord
from backbay.reporting.lines import innermost, own, places

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
_RAISED = re.compile(r"^torch\._dynamo\.exc\.\w+: ", re.MULTILINE)


def parse(text: str, *, function: str = "", call: int = 0) -> BreakRecord:
    """Return a break from its text, which has the user's traceback in it.

    Args:
        text: what torch wrote.
        function: the function that was traced.
        call: the call in which it happened.
    """
    said, _, rest = text.partition("\nTraceback (most recent call last)")
    head, _, stack = said.partition(_STACK)
    found = list(places(stack or head))
    raised = _RAISED.split(rest)[-1] if "Graph Break Reason: " not in head else ""
    message = raised or head.partition("Graph Break Reason: ")[2]
    return _record(
        message or head,
        line=innermost(found),
        stack=tuple(str(x) for x in own(found)),
        skipped=any(x in text for x in _SKIPS),
        function=function,
        calls=(call,),
    )


def parse_failure(
    reason: str, file: str | None, number: int | None, *, function: str = "", call: int = 0
) -> BreakRecord:
    """Return a break of which torch tells only in its metrics: a function that runs eagerly."""
    line = f"{file}:{number}" if file else ""
    stack = (line,) if line else ()
    return _record(reason, line=line, stack=stack, skipped=True, function=function, calls=(call,))


def _record(text: str, **known: Any) -> BreakRecord:
    # What torch met while it handled the break comes after it; the break itself comes first.
    first = text.partition(_LOWER)[0]
    found = _FORM.search(first)
    if found is None:
        lines = [x.strip() for x in first.splitlines() if x.strip()] or ["unknown"]
        explanation = " ".join(lines[1:])
        return BreakRecord(
            reason=lines[0], explanation=explanation, hints=(), context="", url="", **known
        )
    hints = [x for x in found["hints"].split("\n  Hint: ") if x.strip()]
    return BreakRecord(
        reason=_flat(found["reason"]),
        explanation=_flat(found["explanation"]),
        hints=advice.useful([_flat(x) for x in hints]),
        context=_flat(found["context"]),
        url=found["url"] or "",
        **known,
    )


def _flat(text: str) -> str:
    return " ".join(text.split())
