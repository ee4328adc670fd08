"""The user's own lines, out of torch's texts and Python's tracebacks."""

import functools
import importlib.util
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import backbay

_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<number>\d+), in (?P<function>\S+)')
_OURS = Path(backbay.__file__).parent
_WORKLOADS = _OURS / "workloads"
_MODELS = ("decoder.py",)
"""Files of ours that hold a model: to who reads its explanation, they are the user's."""


class Place(NamedTuple):
    """One line of source."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        """Return it as reports do: ``file:line: code``."""
        code = linecache.getline(self.file, self.number).strip()
        return f"{self.file}:{self.number}: {code}" if code else f"{self.file}:{self.number}"


def places(text: str) -> Iterator[Place]:
    """Find the places that a printed traceback names, in order."""
    for line in text.splitlines():
        found = _FRAME.match(line)
        if found is not None:
            yield Place(found["file"], int(found["number"]), found["function"])


def traced(trace: TracebackType | None) -> list[Place]:
    """Return the places of a traceback, the outermost first."""
    frames = traceback.extract_tb(trace)
    return [Place(x.filename, x.lineno or 0, x.name) for x in frames]


def whole(file: str) -> str:
    """Return the path of a file that torch shortened; what can't be found is given as it is.

    Torch leaves out what a path shares with its own folder, and where that is only the root, the
    first letter too.
    """
    if Path(file).is_absolute() or file.startswith("<"):
        return file
    shared = (parent / file for parent in _torch_folder().parents)
    known = (Path(x) for x in linecache.cache if x.endswith(file))  # it has read the line
    return next((str(x) for x in (*shared, *known) if x.is_file()), file)


def own(found: Iterable[Place]) -> list[Place]:
    """Keep the user's places: those outside of torch, and not before a call that we made."""
    kept: list[Place] = []
    for place in found:
        path = Path(place.file)
        is_model = path.parent == _WORKLOADS and path.name in _MODELS
        # What torch and Python make at run time has no file: <eval_with_key>, <frozen importlib>.
        generated = place.file.startswith(("<eval_with_key>", "<frozen "))
        if path.is_relative_to(_OURS) and not is_model:
            kept.clear()  # who called us is not what is explained
        elif not generated and not path.is_relative_to(_torch_folder()):
            kept.append(place)
    return kept


def innermost(found: Iterable[Place]) -> str:
    """Return the user's line that is nearest to where it happened; empty if none is theirs."""
    theirs = own(found)
    return str(theirs[-1]) if theirs else ""


@functools.cache
def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "torch is a requirement"
    assert spec.origin is not None
    return Path(spec.origin).parent
