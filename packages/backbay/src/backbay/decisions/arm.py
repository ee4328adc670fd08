"""An arm as one value, and as a line of text: ``backend[@mode][{option: value, ...}][ on SCOPE]``.

An option's value is JSON. A single word needs no quotes, and Python's own literals are taken, too.
"""

import ast
import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from backbay.errors import InputError

WHOLE = "whole"
"""The scope of torch.compile: the model."""
BLOCKS = "blocks"
"""The scope of a model's repeated blocks, each compiled in place."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[][{},]')
_MODE = re.compile(r"[A-Za-z][\w-]*")
_PART = re.compile(r"\w[\w.]*")
_SCOPE = re.compile(rf"(.*\S) on ({_PART.pattern})", re.DOTALL)
_OPTION = re.compile(r"[\w.-]+")
_WORD = re.compile(r"[^\W\d][\w./-]*")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_PAIRS = {"}": "{", "]": "["}


class Arm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is raced and chosen: a backend, with a mode and options, on all or parts of a model.

    Raises:
        InputError: an option or a scope could not be written as text, and read again.
    """

    backend: str
    """A registered name, ``module:attribute`` or ``file.py:attribute``."""
    mode: str | None = None
    """As torch.compile takes it."""
    options: dict[str, Any] = {}
    """Likewise; values are what JSON has."""
    scope: str = WHOLE
    """What is compiled: ``whole``, ``blocks``, or the name of a submodule."""

    def __post_init__(self) -> None:
        if not _PART.fullmatch(self.scope):
            raise InputError(f"no part of a model can be named {self.scope!r}")
        for name, value in self.options.items():
            if not isinstance(name, str) or not _OPTION.fullmatch(name):
                raise InputError(f"an option of {self.backend} can't be named {name!r}")
            if not _is_json(value):
                raise InputError(
                    f"option {name!r} of {self.backend} is a {type(value).__name__}: an arm's "
                    "options are text, numbers, true, false, null, and lists and dicts of them"
                )

    @property
    def plain(self) -> bool:
        """Whether it is a backend and nothing else."""
        return self.mode is None and not self.options and self.scope == WHOLE

    def __str__(self) -> str:
        """Return it as it is written on a command line; `parse_arm` reads it."""
        mode = f"@{self.mode}" if self.mode else ""
        scope = "" if self.scope == WHOLE else f" on {self.scope}"
        return f"{self.backend}{mode}{options_text(self.options)}{scope}"


def options_text(options: Mapping[str, Any]) -> str:
    """Return options as an arm has them, in braces; empty where there are none."""
    given = ", ".join(f"{name}: {_written(x)}" for name, x in sorted(options.items()))
    return f"{{{given}}}" if given else ""


def parse_options(text: str) -> dict[str, Any]:
    """Read options as an arm has them; the braces may be left out.

    Raises:
        InputError: they can't be read; the message says where.
    """
    text = text.strip()
    if not text.startswith("{"):
        text = f"{{{text}}}"
    if not text.endswith("}"):
        raise _mistake(text, len(text), "the options are not closed by '}'")
    return dict(_options(text, 1))


def parse_arms(text: str) -> list[Arm]:
    """Read arms that commas separate; a comma inside of braces belongs to an arm.

    Raises:
        InputError: one of them can't be read; the message says where.
    """
    return [parse_arm(piece) for _, piece in _pieces(text, text) if piece.strip()]


def parse_arm(text: str) -> Arm:
    """Read an arm.

    Raises:
        InputError: it can't be read; the message says where.
    """
    text = text.strip()
    scoped = _SCOPE.fullmatch(text)
    text, scope = scoped.groups() if scoped is not None else (text, WHOLE)
    head, brace, _ = text.partition("{")
    if brace and not text.endswith("}"):
        raise _mistake(text, len(text), "the options are not closed by '}'")
    options = dict(_options(text, len(head) + 1)) if brace else {}
    backend, at, mode = head.strip().rpartition("@")
    if at and not mode:
        raise _mistake(text, len(head), "there is no mode after '@'")
    if not at or not _MODE.fullmatch(mode):  # a path may have an @ in it
        backend, mode = head.strip(), ""
    if not backend:
        raise InputError(f"arm {text!r}, character 1: no backend is named")
    return Arm(backend=backend, mode=mode or None, options=options, scope=scope)


def _options(text: str, begin: int) -> Iterator[tuple[str, Any]]:
    """Yield the options of an arm, whose braces begin before a position and end with the text."""
    given = set[str]()
    if not text[begin:-1].strip():
        return
    for at, piece in _pieces(text[begin:-1], text, begin):
        name, colon, value = piece.partition(":")
        where, name = at + len(name) - len(name.lstrip()), name.strip()
        if not piece.strip():
            raise _mistake(text, where, "an option is missing")
        if not _OPTION.fullmatch(name):
            raise _mistake(text, where, f"{name!r} is no option's name")
        if not colon or not value.strip():
            raise _mistake(text, where, f"option {name!r} has no value: write {name}: VALUE")
        if name in given:
            raise _mistake(text, where, f"option {name!r} is given twice")
        given.add(name)
        yield name, _value(value.strip(), text, at + piece.index(":") + 1)


def _pieces(text: str, whole: str, offset: int = 0) -> Iterator[tuple[int, str]]:
    """Yield what is between commas outside of brackets and quotes, and where each begins.

    Args:
        text: what is taken apart.
        whole: what the user wrote, for an error.
        offset: where the text begins in it.
    """
    opened, begin = list[tuple[str, int]](), 0
    for token in _TOKEN.finditer(text):
        mark, at = token[0], token.start()
        if mark in _PAIRS.values():
            opened.append((mark, at))
        elif mark in _PAIRS:
            if not opened or opened.pop()[0] != _PAIRS[mark]:
                raise _mistake(whole, offset + at, f"{mark!r} closes nothing")
        elif mark == "," and not opened:
            yield offset + begin, text[begin:at]
            begin = token.end()
    if opened:
        mark, at = opened[-1]
        raise _mistake(whole, offset + at, f"{mark!r} is not closed")
    yield offset + begin, text[begin:]


def _value(text: str, whole: str, at: int) -> Any:
    if text in _LITERALS:
        return _LITERALS[text]
    if _WORD.fullmatch(text):
        return text
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(text)
            if _is_json(value):
                return value
    raise _mistake(whole, at, f"{text} is no value: quote text that is more than a word")


def _is_json(value: object) -> bool:
    """Whether JSON has such a value, so that it is the same when it was written and read again."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_json, value.values()))
    return value is None or isinstance(value, bool | int | str)


def _written(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _LITERALS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _mistake(text: str, at: int, what: str) -> InputError:
    noun = "options" if text.startswith("{") else "arm"  # no arm begins with a brace
    return InputError(f"{noun} {text!r}, character {at + 1}: {what}")
