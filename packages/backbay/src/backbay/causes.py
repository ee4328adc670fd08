"""What went wrong in one line, of an exception, what it was raised from, and their long texts.

A compiler's error is wrapped, by Dynamo and often by the backend, and an engine's own text begins
with places in its C++ sources. A reader needs the innermost cause, the operator, and the line of
theirs. Nothing is looked up: all of it is in the texts.
"""

import re
from collections.abc import Iterator, Sequence
from os import PathLike

from backbay.errors import BackbayError, GraphBroken, line_of, plain

_LONGEST = 400  # characters: a row of a table, not a log

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"^\[\d\d:\d\d:\d\d\] (\S+:\d+: )?")  # TVM's log begins a text so
_PLACES = re.compile(  # where engines raise, not what
    r"^(Traceback \(most recent call last\)|Stack trace|File \"|Exception (raised )?from |frame #|"
    r"\[bt\]|\d+: \S|[~^]+$|[-=]+$|Check '.*' failed at )"
)
_KIND = re.compile(r"^(\w+\.)*\w*(Error|Exception|Failure): \S")
_OPERATOR = re.compile(r"\[target=([^\]]+)\]|^\s*target: (\S+)", re.MULTILINE)
_USERS = re.compile(r"(?:Original traceback|from user code):\n(.+?)(?:\n\n|\Z)", re.DOTALL)


def one_line(error: BaseException) -> str:
    """Return an error's innermost cause, what was raised from it, the operator and the user's line.

    Dynamo wraps what a backend raises; what it raised is what a reader needs. Of a long text it is
    the line that says what happened. Operator and line are there where torch.fx or Inductor put
    them into the text, or a note of the error has them in torch.fx's form.
    """
    raised = list(_chain(error))
    where = _where([text for x in reversed(raised) for text in (_text(x), *_notes(x))])
    outer, inner = worded(raised[0]), worded(raised[-1])
    if len(raised) > 1:
        # What repeats its cause says more; what does not stands after it.
        said = _said(raised[-1])
        inner = outer if said and said in outer else f"{inner} (raised as {outer})"
    ends = "".join(f", at {x}" for x in where if x not in inner)
    return _cut(inner, _LONGEST - min(len(ends), _LONGEST // 2)) + _cut(ends, _LONGEST // 2)


def of_file(path: str | PathLike[str], error: BaseException) -> str:
    """Return one line on an error, for a sentence that names the file already."""
    if isinstance(error, OSError) and str(error.filename or path) == str(path):
        return plain(error.strerror or str(error))
    return one_line(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield what was raised, without Dynamo's wrapping, and what each was raised from on purpose.

    What was merely being handled meanwhile is often no cause; an error of Backbay's says it all.
    """
    seen = set[int]()
    while id(error) not in seen:
        seen.add(id(error))
        wrapped = getattr(error, "inner_exception", None)
        if isinstance(wrapped, BaseException):
            error = wrapped
            continue
        yield error
        if isinstance(error, BackbayError) or error.__cause__ is None:
            return
        error = error.__cause__


def worded(error: BaseException) -> str:
    """Return an error's kind and the line of its text that says what happened.

    One of Backbay's is a whole sentence, to which its class adds nothing; but those of broken
    graphs are what authors of passes look up.
    """
    said, kind = _said(error), plain(type(error).__name__)
    if said and isinstance(error, BackbayError) and not isinstance(error, GraphBroken):
        return said
    return f"{kind}: {said}" if said else kind


def _said(error: BaseException) -> str:
    return plain(_telling(_ANSI.sub("", _text(error))))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (its __str__ is the backend's own; the kind is known)
        return ""


def _telling(text: str) -> str:
    lines = [_STAMP.sub("", line.strip()) for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not _PLACES.match(line)]
    if len(kept) < len(lines):  # of a traceback within, the last line is the error
        kept = [x for x in kept if _KIND.match(x)][-1:] or kept
    if not kept:
        return lines[0] if lines else ""
    number = next((i for i, line in enumerate(kept) if not line.endswith(":")), len(kept) - 1)
    return " ".join(kept[max(0, number - 1) : number + 1])


def _where(texts: Sequence[str]) -> list[str]:
    """Return the operator that was being compiled, and the user's line, as far as texts say."""
    operators = (x[1] or x[2] for text in texts for x in _OPERATOR.finditer(text))
    lines = (line_of(x[1]) for text in texts for x in _USERS.finditer(text))
    found = (next(operators, ""), next((x for x in lines if x), ""))
    return [plain(x) for x in found if x]


def _notes(error: BaseException) -> list[str]:
    return [x for x in getattr(error, "__notes__", ()) if isinstance(x, str)]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
