"""Every error that Backbay raises on purpose, its warning, and how they show text from outside.

::

    BackbayError
    ├── InputError              what the caller gave is wrong; the command line exits with code 2
    │   ├── BackendNotFound     nobody knows the name
    │   ├── BackendUnavailable  the name is known, and it does not run here
    │   ├── BackendConflict     two origins claim one name
    │   ├── BackendLoadError    the backend's own code raised, or is not a backend
    │   ├── InvalidPreflight    what was asked of a backend cannot work; every reason is given
    │   ├── PolicyError         a policy cannot be understood, or contradicts itself
    │   ├── ManifestError       a manifest cannot be understood
    │   ├── NameInvalid         no backend and package can be called so
    │   ├── NameTaken           another backend, distribution or module is called so
    │   ├── PathTaken           what would be written exists
    │   ├── MissingDependency   a package is not installed; an ImportError too
    │   ├── WorkloadNotFound    nobody knows the workload
    │   └── WorkloadInvalid     the workload's function raised, or returned no model
    ├── GraphBroken             a pass left a graph that is not right; a class for each way
    │   ├── MissingOutput       the graph returns nothing, or something else than before
    │   ├── WrongDtype          a result has another dtype than before
    │   ├── ShapeAssumed        a result has another shape: a symbolic size was taken for a number
    │   ├── WrongResult         a result has another value, on random inputs
    │   ├── GradientMismatch    a result lost its gradient, or it has another value
    │   ├── DanglingNode        a node uses one that is not in the graph, or comes after it
    │   ├── ErasedInUse         a node was erased that others still use
    │   ├── StaleCode           the graph was changed, and its code was not made anew
    │   └── EndlessPass         a pass adds nodes to the graph that it is walking over
    ├── CompilationFailed       a backend raised while it compiled a graph
    ├── ProofImpossible         no reference exists to prove a result against
    │   └── NothingTrained      eager's own backward reaches nothing
    └── SkippedGuardFailed      a guard that a filter left out does not hold any more

    ExperimentalBackendWarning  a backend was chosen whose author makes no promises

Each message says what happened, where, and what to do next, on one line; a preflight's has a line
for each reason.
"""

import re
import sys
import warnings
from types import FrameType
from typing import Any

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


def line_of(trace: str) -> str:
    """Return the innermost line of a stack trace, ``file:line: code``."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    places = [number for number, line in enumerate(lines) if line.startswith('File "')]
    if not places:
        return ""
    last = places[-1]
    file, _, rest = lines[last].removeprefix('File "').partition('", line ')
    code = lines[last + 1] if last + 1 < len(lines) else ""
    place = f"{file}:{rest.partition(',')[0]}"
    return f"{place}: {code}" if code else place


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class BackbayError(Exception):
    """Base of every error that Backbay raises on purpose."""

    def __str__(self) -> str:
        """Return the message; names and texts in it that are not ours can't act on a terminal."""
        return escaped(super().__str__())


class Interrupted(KeyboardInterrupt):
    """A race or a verification was interrupted; ``report`` holds what it had found, and says so.

    Whatever interrupted it is the cause.
    """

    def __init__(self, report: Any) -> None:
        super().__init__()
        self.report = report


class InputError(BackbayError):
    """What the caller gave is wrong; nothing was run."""


class BackendNotFound(InputError):  # noqa: N818 (reads as the mistake that it names)
    """No backend of this name is known."""


class BackendUnavailable(InputError):  # noqa: N818
    """The backend is known, and it does not run here."""


class BackendConflict(InputError):  # noqa: N818
    """Two origins claim the same backend name."""


class BackendLoadError(InputError):
    """A backend's own code raised while it was loaded, or what it names is not a backend."""


class InvalidPreflight(InputError):  # noqa: N818
    """What was asked of a backend cannot work; nothing was compiled.

    ``problems`` holds every reason, one line each.
    """

    def __init__(self, what: str, problems: list[str]) -> None:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{what} cannot work:{lines}")
        self.problems = problems


class PolicyError(InputError):
    """A policy file, variable or call cannot be understood, or contradicts itself."""


class ManifestError(InputError):
    """A manifest cannot be understood."""


class NameInvalid(InputError):  # noqa: N818
    """What is to be made can't have this name."""


class NameTaken(InputError):  # noqa: N818
    """What is to be made can't have this name: another backend, distribution or module has it."""


class PathTaken(InputError):  # noqa: N818
    """What would be written exists; nothing is ever overwritten."""


class MissingDependency(InputError, ImportError):  # noqa: N818
    """What was asked for needs a package that is not installed; the message says what to do."""


class WorkloadNotFound(InputError):  # noqa: N818
    """No workload of this name is known."""


class WorkloadInvalid(InputError):  # noqa: N818
    """A workload's function raised, or did not return a model and its inputs.

    Where the user's own code raised, ``__notes__`` holds its traceback, ours cut.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        if detail:
            self.add_note(detail)


class CompilationFailed(BackbayError):  # noqa: N818
    """A backend raised while it compiled a graph; the message begins with the innermost cause.

    What it raised is the cause of this error.
    """


class ProofImpossible(BackbayError):  # noqa: N818
    """No reference exists that a result could be proven against."""


class NothingTrained(ProofImpossible):
    """In training, eager's own backward reaches no parameter and no input."""


class SkippedGuardFailed(BackbayError):  # noqa: N818
    """A guard that a filter, or torch itself, left out does not hold any more: what runs is stale.

    Raised by code that was compiled with ``check_guards``.
    """


class GraphBroken(BackbayError):  # noqa: N818 (reads as the mistake that it names)
    """A pass left a graph that is not right; the message names the pass and the node."""


class MissingOutput(GraphBroken):
    """The graph returns nothing, or another structure than before."""


class WrongDtype(GraphBroken):
    """A result of the graph has another dtype, or another device, than before."""


class ShapeAssumed(GraphBroken):
    """A result of the graph has another shape: often a symbolic size was taken for a number."""


class WrongResult(GraphBroken):
    """The graph computes something else than before, on random inputs."""


class GradientMismatch(GraphBroken):
    """A result of the graph has no gradient any more, or another one."""


class DanglingNode(GraphBroken):
    """A node uses one that is not in the graph, or that comes after it."""


class ErasedInUse(GraphBroken):
    """A node was erased that others still use."""


class StaleCode(GraphBroken):
    """The graph was changed, and the graph module was not recompiled."""


class EndlessPass(GraphBroken):
    """A pass goes on adding nodes: it changes the graph while it walks over it."""


PACKAGES = {
    "torch": ("torch",),
    "race": ("numpy", "matplotlib", "psutil", "safetensors"),
    "ray": ("ray",),
}
"""Modules that each extra brings."""


def missing_for(what: str, error: ModuleNotFoundError) -> MissingDependency | None:
    """Return what to raise for an import that failed; nothing if an extra does not bring it."""
    module = (error.name or "").partition(".")[0]
    known = {x for modules in PACKAGES.values() for x in modules}
    return missing(what, [module]) if module in known else None


def missing(what: str, modules: list[str]) -> MissingDependency:
    """Return the error for modules that are not installed, with what to install."""
    extras = [extra for extra, brought in PACKAGES.items() if set(brought) & set(modules)]
    verb = "is" if len(modules) == 1 else "are"
    return MissingDependency(
        f"{what} needs {', '.join(modules)}, which {verb} not installed: "
        f"pip install 'backbay[{','.join(extras)}]'"
    )


class ExperimentalBackendWarning(UserWarning):
    """A backend was chosen whose author calls it experimental."""


_BETWEEN = frozenset(
    {"backbay", "backbay_adapters", "backbay_conformance", "backbay_optimizer", "contextlib",
     "torch"}
)  # fmt: skip
"""Packages whose frames lie between the user's line and the choice of a backend."""
_warned: set[tuple[str, str]] = set()
_silent = False


def keep_silent() -> None:
    """Warn of nothing in this process from now on: it answers another's requests, which did."""
    global _silent  # noqa: PLW0603 (a process is such a one, or it is not)
    _silent = True


def warn_of_experimental(name: str, origin: str) -> None:
    """Warn of a backend that was chosen, at the user's line that led to it; once a process.

    Args:
        name: of the backend.
        origin: who provides it.
    """
    chosen = name, origin
    if _silent or chosen in _warned:
        return
    _warned.add(chosen)
    frame = _users_frame()
    try:
        warnings.warn_explicit(
            f"backend {name!r} of {origin} is experimental: its author makes no promises. "
            f"`backbay verify --backend {name}` proves it on a model",
            ExperimentalBackendWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__", "<unknown>"),
        )
    except ExperimentalBackendWarning:  # a filter makes it an error: so it is every time
        _warned.discard(chosen)
        raise


def _users_frame() -> FrameType:
    """Return the innermost frame of other code than ours and torch's; else the outermost."""
    frame = sys._getframe(1)  # noqa: SLF001 (as the warnings module does)
    while frame.f_back is not None and _package(frame) in _BETWEEN:
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
