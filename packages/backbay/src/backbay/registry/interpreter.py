"""What is to be known of an interpreter: what it is, and where it finds modules. Imports none."""

import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

FindSpec = Callable[[str, Sequence[str] | None], ModuleSpec | None]
"""Finds a module in these folders, or wherever its import would look, and runs none of it."""


class OnlyAnImportTells(LookupError):  # noqa: N818 (reads as the answer that it is)
    """Whether there is such a module is decided by code of that environment, which is not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter, and where it looks for what is installed."""

    executable: str

    version: str
    """Of Python, as ``3.12.4``."""

    platform: str
    """Operating system and processor, as ``linux-x86_64``."""

    path: Sequence[str]
    """Its ``sys.path``."""

    find_spec: FindSpec
    """Raises `OnlyAnImportTells` where nothing that is read answers."""

    loaded: Container[str]
    """Modules that no file has to be found for."""

    markers: Mapping[str, str] | None = None
    """What requirements' environment markers are about; ``None``: about this process."""

    packages: str | None = None
    """The folder into which pip installs; ``None``: this process's, as ``sysconfig`` has it."""


def this_interpreter() -> Interpreter:
    """Return the interpreter of this process; what it imports from now on counts, too."""
    return Interpreter(
        executable=sys.executable or "",
        version=".".join(map(str, sys.version_info[:3])),
        platform=platform(sys.platform, _machine()),
        path=sys.path,
        find_spec=found_by_finders,
        loaded=sys.modules,
    )


def platform(system: str, machine: str) -> str:
    """Return an operating system and a processor as one name, as requirements have it."""
    return f"{system}-{'x86_64' if machine in {'AMD64', 'amd64'} else machine}"


def found_by_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module as this process's imports do."""
    # Not importlib.util.find_spec: its import is felt in a listing.
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def module_exists(name: str, find_spec: FindSpec) -> bool:
    """Look for a module without importing its parents, which ``importlib.util.find_spec`` does."""
    parts = name.split(".")
    spec = find_spec(parts[0], None)
    for end in range(2, len(parts) + 1):
        if spec is None:
            return False
        try:
            spec = find_spec(".".join(parts[:end]), list(spec.submodule_search_locations or ()))
        except KeyError:
            return True  # a namespace package inside another: only importing it can tell
    return spec is not None


def _machine() -> str:
    if hasattr(os, "uname"):
        return os.uname().machine
    return os.environ.get("PROCESSOR_ARCHITECTURE", "")
