"""Graph breaks, as torch says them: what happened, why, and what to change.

Torch writes a break to its structured trace as text, always of one form (``format_graph_break_
message`` in ``torch/_dynamo/exc.py``, the same from 2.11 to 2.15). What is not of that form is
kept as it is.
"""

import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One graph break."""

    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str
    url: str
    line: str
    stack: tuple[str, ...]
    skipped: bool


def parse(text: str) -> Break:
    """Take apart the text of a break, with the user's traceback in it."""
    said, _, rest = text.partition("\nTraceback (most recent call last)")
    head, _, stack = said.partition(_STACK)
    found = list(places(stack or head))
    raised = _RAISED.split(rest)[-1] if "Graph Break Reason: " not in head else ""
    message = raised or head.partition("Graph Break Reason: ")[2]
    reason, explanation, hints, context, url = _message(message or head)
    return Break(
        reason=reason,
        explanation=explanation,
        hints=hints,
        context=context,
        url=url,
        line=innermost(found),
        stack=tuple(str(x) for x in own(found)),
        skipped=any(x in text for x in _SKIPS),
    )


def parse_failure(reason: str, file: str | None, number: int | None) -> Break:
    """Return a break of which torch tells only in its metrics: a function that runs eagerly."""
    what, explanation, hints, context, url = _message(reason)
    line = f"{file}:{number}" if file else ""
    return Break(
        reason=what,
        explanation=explanation,
        hints=hints,
        context=context,
        url=url,
        line=line,
        stack=(line,) if line else (),
        skipped=True,
    )


def _message(text: str) -> tuple[str, str, tuple[str, ...], str, str]:
    # What torch met while it handled the break comes after it; the break itself comes first.
    first = text.partition(_LOWER)[0]
    found = _FORM.search(first)
    if found is None:
        lines = [x.strip() for x in first.splitlines() if x.strip()]
        return (lines[0] if lines else "unknown"), " ".join(lines[1:]), (), "", ""
    hints = [x for x in found["hints"].split("\n  Hint: ") if x.strip()]
    return (
        _flat(found["reason"]),
        _flat(found["explanation"]),
        tuple(map(_flat, hints)),
        _flat(found["context"]),
        found["url"] or "",
    )


def _flat(text: str) -> str:
    return " ".join(text.split())
