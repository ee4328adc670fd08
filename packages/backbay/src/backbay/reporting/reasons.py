"""Why a guard failed, in the user's words: which of their values changed, and from what to what.

Torch names a guard by the expression that it checks, and says little of what it found instead. What
we do not know the form of is kept, with torch's names for things taken out of it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from backbay.reporting.lines import whole

Kind = Literal["size", "value", "other"]
"""What changed: a size, a Python value, or anything else."""

_VERSION = re.compile(r"^(?P<version>\d+/\d+): ")
_HINT = re.compile(r"\(HINT: (?P<hint>.*?)\)(?=\s*$|\n)", re.DOTALL)
_PLACE = re.compile(r"#\s+(?P<code>.*?)\s*#\s+(?P<file>\S+):(?P<number>\d+) in (?P<function>\S+)")
_LEFT_OVER = re.compile(r"\b___stack(\d+)\b")
_ROOT = re.compile(r"\b[LG]\['(\w+)'\]")
_SELF = re.compile(r"\bself\._modules\['(\w+)'\]")
_ENTRY = re.compile(r"\._(?:modules|buffers|parameters)\['(\w+)'\]")
_SIZE = re.compile(r"(?P<name>[\w.\[\]']+?)\.size\(\)\[(?P<number>\d+)\]")
_STRIDE = re.compile(r"(?P<name>[\w.\[\]']+?)\.stride\(\)\[(?P<number>\d+)\]")
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why compiled code did not fit any more."""

    kind: Kind
    words: str
    subject: str
    """What changed: of two reasons of one subject, one is told."""
    tensor: str = ""
    """Whose size changed, as the user would write it; empty where torch names no tensor."""
    was: int | None = None
    """The size that was compiled for; ``None`` where another thing changed, or nobody says."""


class FailedGuard(NamedTuple):
    """One of torch's reasons to compile again, taken apart; what it does not have is empty."""

    version: str
    """The compile id of the version that did not fit."""
    guard: str
    line: str
    """Where the compiled code depends on it."""
    hint: str


def parse(text: str) -> FailedGuard:
    """Take one of torch's reasons apart."""
    said = text.partition("\nUser stack trace")[0].strip()
    version = _VERSION.match(said)
    hint, place = _HINT.search(said), _PLACE.search(said)
    guard = said[version.end() :] if version else said
    guard = _HINT.sub("", guard).partition("  # ")[0]
    return FailedGuard(
        version=version["version"] if version else "",
        guard=" ".join(guard.split()),
        line=f"{whole(place['file'])}:{place['number']}: {place['code']}" if place else "",
        hint=" ".join(hint["hint"].split()) if hint else "",
    )


def plainly(expression: str) -> str:
    """Return an expression of torch's guards as the user would write it."""
    text = _SELF.sub(r"self.\1", _ROOT.sub(r"\1", expression))
    text = _ENTRY.sub(r".\1", text)
    text = _SIZE.sub(r"\g<name>.size(\g<number>)", text)
    text = _STRIDE.sub(r"\g<name>.stride(\g<number>)", text)
    text = re.sub(r"^___stack\d+$", "an intermediate result", text)
    return _LEFT_OVER.sub("(an intermediate result)", text)


def told(failed: Sequence[str]) -> Reason:
    """Return why a function was compiled again, out of why each version did not fit.

    A version whose objects are gone tells nothing where another says what changed.
    """
    found = [reason(x) for x in failed]
    return next((x for x in found if not x.subject.startswith("gone: ")), found[0])


def reason(failed: str) -> Reason:
    """Return a failed guard in words."""
    for pattern, worded in _FORMS:
        found = pattern.search(failed)
        if found is not None:
            return worded(found)
    text = plainly(failed)
    return Reason("other", f"{text} does not hold any more", text)


def _unknown(_: re.Match[str]) -> Reason:
    return Reason("other", "torch does not say what changed", "unknown")


def _size(found: re.Match[str]) -> Reason:
    name, number = plainly(found["name"]), found["number"]
    subject = f"the size of {name}'s dimension {number}"
    words = f"{subject} changed from {found['old']} to {found['new']}"
    return Reason("size", words, subject, tensor=name, was=_number(found["old"]))


def _stride(found: re.Match[str]) -> Reason:
    name, number = plainly(found["name"]), found["number"]
    subject = f"the stride of {name}'s dimension {number}"
    return Reason("other", f"{subject} changed from {found['old']} to {found['new']}", subject)


def _rank(found: re.Match[str]) -> Reason:
    name = plainly(found["name"])
    subject = f"the number of {name}'s dimensions"
    return Reason("other", f"{subject} changed from {found['old']} to {found['new']}", subject)


def _dtype(found: re.Match[str]) -> Reason:
    old, new = (_DTYPES.get(found[x], found[x]) for x in ("old", "new"))
    subject = f"the dtype of {plainly(found['name'])}"
    return Reason("other", f"{subject} changed from {old} to {new}", subject)


def _gradient(found: re.Match[str]) -> Reason:
    name = plainly(found["name"])
    words = "does not require a gradient any more" if found["old"] == "1" else "requires a gradient"
    return Reason("other", f"{name} {words}, other than when it was compiled", f"grad: {name}")


def _dispatch(found: re.Match[str]) -> Reason:
    name = plainly(found["name"])
    words = "is on another device, of another kind of tensor, or in another gradient mode"
    return Reason("other", f"{name} {words} than when it was compiled", f"keys: {name}")


def _gone(found: re.Match[str]) -> Reason:
    name = plainly(found["name"])
    words = "is made anew at each call, and the one that was compiled for is gone"
    return Reason("other", f"{name} {words}", f"gone: {name}")


def _fixed_size(found: re.Match[str]) -> Reason:
    subject = f"the size of {plainly(found['name'])}'s dimension {found['number']}"
    words = f"{subject} is not {found['old']} any more"
    return Reason("size", words, subject, was=int(found["old"]))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _bounded(found: re.Match[str]) -> Reason:
    sizes = [f"{plainly(x['name'])}'s dimension {x['number']}" for x in _SIZE.finditer(found[0])]
    subject = f"the size of {' and of '.join(dict.fromkeys(sizes))}"
    return Reason("size", f"{subject} is not as in {plainly(found[0])} any more", subject)


def _length(found: re.Match[str]) -> Reason:
    subject = f"the length of {plainly(found['name'])}"
    return Reason("value", f"{subject} was {found['old']}, and changed", subject)


def _value(found: re.Match[str]) -> Reason:
    subject, old = plainly(found["name"]), plainly(found["old"])
    return Reason("value", f"{subject} was {old}, and changed", subject)


def _truth(found: re.Match[str]) -> Reason:
    subject = plainly(found["name"])
    was = "false" if found["negated"] else "true"
    return Reason("value", f"{subject} was {was}, and changed", subject)


def _type(found: re.Match[str]) -> Reason:
    subject = f"the type of {plainly(found['name'])}"
    return Reason("other", f"{subject} changed from {found['old'].split('.')[-1]}", subject)


def _identity(found: re.Match[str]) -> Reason:
    name = plainly(found["name"])
    return Reason("other", f"{name} is another object than when it was compiled", f"id: {name}")


def _state(found: re.Match[str]) -> Reason:
    what = " ".join(found["what"].replace("_", " ").split()) or "its settings"
    return Reason("other", f"torch's state changed: {what}", "torch's state")


_MISMATCH = r"tensor '(?P<name>.+?)' {} mismatch"
_CHANGE = r"\. expected {0}(?P<old>\w+), actual {0}(?P<new>\w+)"
_AT = r" at index (?P<number>\d+)"
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Reason]], ...] = tuple(
    (re.compile(pattern), worded)
    for pattern, worded in (
        (_MISMATCH.format("size") + _AT + _CHANGE.format(""), _size),
        (_MISMATCH.format("stride") + _AT + _CHANGE.format(""), _stride),
        (_MISMATCH.format("rank") + _CHANGE.format(""), _rank),
        (_MISMATCH.format("dtype") + _CHANGE.format(""), _dtype),
        (_MISMATCH.format("requires_grad") + r"\. expected requires_grad=(?P<old>\d)", _gradient),
        (_MISMATCH.format("dispatch key set"), _dispatch),
        (r"^Unable to find recompilation reasons", _unknown),
        (r"^Cache line invalidated because (?P<name>.+) got deallocated", _gone),
        (r"^(?P<name>[\w.\[\]']+)\.size\(\)\[(?P<number>\d+)\] == (?P<old>\d+)$", _fixed_size),
        (r"^.*\.size\(\)\[\d+\].*$", _bounded),
        (r"^len\((?P<name>.+)\) == (?P<old>\d+)$", _length),
        (r"^___check_type_id\((?P<name>.+?), \d+\), type=<class '(?P<old>.*)'>", _type),
        (r"^___check_obj_id\((?P<name>.+?), \d+\)", _identity),
        (r"^GLOBAL_STATE changed: (?P<what>.*)$", _state),
        (r"^___check_global_state\((?P<what>)", _state),
        (r"^(?P<name>[\w.\[\]']+) (?:==|is) (?P<old>.+)$", _value),
        (r"^(?P<negated>not )?(?P<name>[\w.\[\]']+)$", _truth),
    )
)
