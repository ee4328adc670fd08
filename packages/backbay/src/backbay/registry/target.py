"""Load what a reference of the form ``module:attribute`` or ``file.py:attribute`` names.

Backends and workloads are given on the command line in this form. This file neither imports torch
nor judges what it loads: an exception from the loaded code reaches the caller as it was raised.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from backbay.registry.environment import found_by_finders, module_exists

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LOADING = threading.RLock()
_LOOKING = threading.Lock()
_running: dict[str, int] = {}
"""Names of files' modules that are being run, each with its thread."""


def _after_fork() -> None:
    """Free, in a child process, what threads hold that only its parent has."""
    global _LOADING, _LOOKING
    _LOADING, _LOOKING = threading.RLock(), threading.Lock()
    for name in [x for x, thread in _running.items() if thread != threading.get_ident()]:
        del _running[name]
        sys.modules.pop(name, None)  # half run: it is run again when it is looked up


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class TargetNotFound(LookupError):  # noqa: N818 (reads as the mistake that it names)
    """There is no such file, module or attribute; the message says which, on one line."""


@dataclass(frozen=True)
class Target:
    """An attribute of a module or of a Python file."""

    source: str
    """A dotted module name, or a path that ends in ``.py``."""

    attribute: str
    """A name in it; may be dotted."""

    @property
    def is_file(self) -> bool:
        """Whether ``source`` is a path."""
        return self.source.endswith(".py")

    def check(self) -> None:
        """Check that the file or module exists, without running any of it.

        Raises:
            TargetNotFound: it does not.
        """
        if self.is_file:
            _existing_file(self.source)
        elif not is_importable(self.source):
            raise TargetNotFound(
                f"there is no module {self.source!r}, installed or in {Path.cwd()}. "
                f"A file is named FILE.py:{self.attribute}."
            )

    def load(self) -> object:
        """Import the source and return its attribute.

        A file's directory is importable meanwhile, before everything else, as in ``python
        file.py``; afterwards it stays on ``sys.path``, last, for what the loaded code imports when
        it is called. For a module that is the current directory, last from the start: what is
        installed wins.

        Raises:
            TargetNotFound: there is no such file, module or attribute. Whatever else the source
                raises while it is imported is not caught.
        """
        self.check()
        if not self.is_file:
            _make_importable(Path.cwd())
            return self.load_installed()
        with _LOADING:  # not for a module: Python's import has locks of its own, and sees a circle
            module = _load_file(self.source)
        return _attribute(module, self.attribute, self.source)

    def load_installed(self) -> object:
        """Import the module, which is not looked for in the current directory, and do likewise.

        Raises:
            TargetNotFound: as `load`.
        """
        if not _DOTTED.fullmatch(self.source):
            raise TargetNotFound(f"{self.source!r} is no module's name")
        module = _import(self.source)
        if module is None:
            _look_again()  # it may have been written a moment ago
            module = _import(self.source)
        if module is None:
            raise TargetNotFound(f"there is no module {self.source!r}")
        return _attribute(module, self.attribute, self.source)


def parse(reference: str) -> Target | None:
    """Take a reference apart; ``None`` if it is not of the form ``SOURCE:ATTRIBUTE``."""
    source, colon, attribute = reference.rpartition(":")
    if not colon or not _DOTTED.fullmatch(attribute):
        return None
    if not source.endswith(".py") and not _DOTTED.fullmatch(source):
        return None
    return Target(source=source, attribute=attribute)


def reference_of(function: Callable[..., object]) -> str | None:
    """Return ``module:name`` under which another process can import a function, if there is one."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    importable = module not in {"__main__", "__mp_main__"} and "<" not in name
    return f"{module}:{name}" if importable else None


def functions_in(path: str) -> list[str]:
    """Return the names of a file's public top-level functions, without running it."""
    import ast  # noqa: PLC0415 (only a mistake needs it)

    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return [name for name in functions if not name.startswith("_")]


def _existing_file(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        return path.resolve()
    siblings = [sibling.name for sibling in path.parent.glob("*.py")]
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f" Did you mean {path.with_name(near[0])}?" if near else ""
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    raise TargetNotFound(f"there is no file {source}{where}.{hint}")


def is_importable(name: str) -> bool:
    """Whether there is a module here, in the current directory too; nothing is imported."""
    return name in sys.modules or module_exists(name, _installed_or_beside)


def _installed_or_beside(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    found = found_by_finders(name, path)
    if found is not None or path is not None:
        return found
    return PathFinder.find_spec(name, [str(Path.cwd())])


def _import(name: str) -> ModuleType | None:
    """Import a module; nothing if there is none. Whatever it lacks itself is another matter."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _look_again() -> None:
    """Let Python forget what it remembers of folders."""
    # In two threads at once it fails: either deletes what the other does.
    with _LOOKING, contextlib.suppress(KeyError):
        importlib.invalidate_caches()


def _load_file(source: str) -> ModuleType:
    path = _existing_file(source)
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look a class's module up
    _running[name] = threading.get_ident()
    try:
        _look_again()
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        finally:
            with contextlib.suppress(ValueError):  # the loaded code may have rearranged sys.path
                sys.path.remove(str(path.parent))
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        del _running[name]
    _make_importable(path.parent)
    return module


def _module_name(path: Path) -> str:
    """Return the same file the same name in every process, and no installed module's name."""
    import hashlib  # noqa: PLC0415 (OpenSSL is loaded for it, and listing needs none)

    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return f"_backbay_file_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{digest}"


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _attribute(module: ModuleType, dotted: str, source: str) -> object:
    try:
        return functools.reduce(getattr, dotted.split("."), module)
    except AttributeError as error:
        public = [name for name in vars(module) if not name.startswith("_")]
        near = difflib.get_close_matches(dotted, public, n=1)
        hint = f" Did you mean {source}:{near[0]}?" if near else ""
        raise TargetNotFound(f"{source} has no attribute {dotted!r}.{hint}") from error
