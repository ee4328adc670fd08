"""Text from outside, made fit for a terminal, a table, a page or an error."""

import re

_LONGEST = 400  # characters: a row of a table, not a log

# What `str.isprintable` lets through and no terminal shows: fillers, joiners, variation selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0000-\U000e0fff]"
)


def escaped(text: str) -> str:
    """Return text with everything escaped that a reader would not see, or a terminal would obey.

    That is: control characters (but for tabs and ends of lines), what turns text around, tags and
    others of no width, lone surrogates, and spaces that only look like one.
    """
    if text.isprintable() and (text.isascii() or _UNSEEN.search(text) is None):
        return text
    return "".join(x if x in "\n\t" or not hidden(x) else _code(x) for x in text)


def plain(text: str) -> str:
    """Return text on one line, escaped."""
    return escaped(" ".join(text.split()))


def hidden(character: str) -> bool:
    """Whether a reader would not see a character, or a terminal would obey it."""
    return not character.isprintable() or _UNSEEN.match(character) is not None


def one_line(error: BaseException) -> str:
    """Return an error's kind and the first line of its message.

    Dynamo wraps what a backend raises; what it raised is what a reader needs.
    """
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    text = plain(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
