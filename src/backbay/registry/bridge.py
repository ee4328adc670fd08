"""The two ways between this registry and torch's own; only this file touches torch's.

torch is imported here only when a backend of torch's is loaded; what other code has registered with
torch is read only where torch's registry is already in memory. Private names of torch's that are
used: ``_COMPILER_FNS`` (2.11 to 2.15), ``_BACKEND_TAGS`` (from 2.14.1), and the attribute ``_tags``
of functions (before). ``tests/registry/test_torch_versions.py`` holds them.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any, cast

from backbay.errors import BackendLoadError, BackendNotFound
from backbay.registry.spec import BackendSpec, CompilerFn, Origin

TORCH_REGISTRY = "torch._dynamo.backends.registry"


def load_from_torch(name: str) -> CompilerFn:
    """Give the compiler function that torch's registry has under a name.

    Raises:
        BackendLoadError: torch's registry raised.
    """
    try:
        registry = importlib.import_module(TORCH_REGISTRY)
        return cast("CompilerFn", registry.lookup_backend(name))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise BackendLoadError(f"torch could not load its backend {name!r}: {said}") from error


def load_by_import(module: str, name: str) -> CompilerFn:
    """Import a module that registers a backend with torch, and give what it registered.

    Raises:
        BackendLoadError: it registered no backend of this name. What the module raises passes.
    """
    importlib.import_module(TORCH_REGISTRY)
    importlib.import_module(module)
    found = held_by_torch(name)
    if found is None:
        raise BackendLoadError(
            f"{module} was imported and registered no backend {name!r} with torch: "
            "its version may be another than the catalogue knows"
        )
    return found


def registered_in_torch() -> Iterator[BackendSpec]:
    """Give what this process registered with torch; nothing where its registry is not loaded."""
    module = _loaded()
    for name, compiler_fn in list(getattr(module, "_COMPILER_FNS", {}).items()):
        origin = Origin(kind="process", location=location_of(compiler_fn))
        tags = _tags(module, name, compiler_fn)
        yield BackendSpec(name=name, origin=origin, loading="torch", tags=tags)


def held_by_torch(name: str) -> CompilerFn | None:
    """Give what torch's registry holds under a name, if it is loaded."""
    return cast("CompilerFn | None", getattr(_loaded(), "_COMPILER_FNS", {}).get(name))


def take_back(name: str, compiler_fn: CompilerFn) -> bool:
    """Take out of torch's registry what was pushed there under a name; nothing else."""
    module = _loaded()
    if held_by_torch(name) is not compiler_fn:
        return False
    del module._COMPILER_FNS[name]
    getattr(module, "_BACKENDS", {}).pop(name, None)
    getattr(module, "_BACKEND_TAGS", {}).pop(name, None)
    return True


def not_found(message: str) -> BackendNotFound:
    """Give the error for an unknown name; where torch is loaded, one of its ``InvalidBackend`` too.

    Code that was written for torch's registry catches that.
    """
    invalid = getattr(sys.modules.get("torch._dynamo.exc"), "InvalidBackend", None)
    if invalid is None:
        return BackendNotFound(message)
    both = type("InvalidBackend", (BackendNotFound, invalid), {"__init__": Exception.__init__})
    return cast("BackendNotFound", both(message))


def location_of(compiler_fn: object) -> str | None:
    """Give ``file:line`` of a function's definition, or its module where it has no code."""
    code = getattr(compiler_fn, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else type(compiler_fn).__module__


def module_of(compiler_fn: object) -> str | None:
    """Give the name of the module that defines a compiler function."""
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else None


def _loaded() -> Any:
    return sys.modules.get(TORCH_REGISTRY)


def _tags(module: Any, name: str, compiler_fn: CompilerFn) -> tuple[str, ...]:
    by_name = getattr(module, "_BACKEND_TAGS", None)
    tags = by_name.get(name, ()) if by_name is not None else getattr(compiler_fn, "_tags", ())
    return tuple(tags)
