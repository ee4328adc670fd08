"""The two ways between this registry and torch's own; only this file touches torch's.

torch is imported here only when a backend of torch's is loaded; what other code has registered with
torch is read only where torch's registry is already in memory. Private names of torch's that are
used: ``_COMPILER_FNS`` and ``_BACKENDS`` (2.11 to 2.15), ``_BACKEND_TAGS`` (from 2.14.1), and the
attribute ``_tags`` of functions (before). ``tools/torch_versions.py`` runs the registry's tests on
each torch.
"""

import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, cast

from backbay.errors import BackendLoadError, BackendNotFound
from backbay.registry.spec import BackendSpec, CompilerFn, Origin

TORCH_REGISTRY = "torch._dynamo.backends.registry"


def load_from_torch(name: str) -> CompilerFn:
    """Return the compiler function that torch's registry has under a name.

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
    """Yield what this process registered with torch; nothing where its registry is not loaded."""
    module = _loaded()
    for name, compiler_fn in _table(module).items():
        origin = Origin(kind="process", location=location_of(compiler_fn))
        tags = _tags(module, name, compiler_fn)
        yield BackendSpec(name=name, origin=origin, loading="torch", tags=tags)


def held_by_torch(name: str) -> CompilerFn | None:
    """Return what torch's registry holds under a name, if it is loaded."""
    return _table(_loaded()).get(name)


def names_in_torch() -> list[str]:
    """Return the names in torch's registry, if it is loaded."""
    return list(_table(_loaded()))


def give(name: str, compiler_fn: CompilerFn, tags: Sequence[str]) -> None:
    """Register a compiler function with torch, whose registry is loaded."""
    module = _loaded()
    published = getattr(module, "_BACKENDS", {}).get(name)
    module.register_backend(compiler_fn, name=name, tags=tuple(tags))
    if published is not None:  # up to 2.14.0 torch forgets whose entry point has the name
        module._BACKENDS[name] = published


def take_back(name: str, compiler_fn: CompilerFn) -> bool:
    """Take out of torch's registry what is there under a name, if it is this; nothing else."""
    module = _loaded()
    if held_by_torch(name) is not compiler_fn:
        return False
    del module._COMPILER_FNS[name]
    if getattr(module, "_BACKENDS", {}).get(name, module) is None:  # else it is an entry point's
        del module._BACKENDS[name]
    getattr(module, "_BACKEND_TAGS", {}).pop(name, None)
    return True


def take_back_of_failed(before: frozenset[str]) -> None:
    """Take out of torch's registry what came since, from modules that failed to be imported.

    Their code will run again, and torch refuses a name that it has.
    """
    for name, compiler_fn in _table(_loaded()).items():
        module = module_of(unwrapped(compiler_fn))
        if name not in before and module is not None and module not in sys.modules:
            take_back(name, compiler_fn)


def not_found(message: str) -> BackendNotFound:
    """The error for an unknown name; where torch is loaded, one of its ``InvalidBackend`` too.

    Code that was written for torch's registry catches that.
    """
    invalid = getattr(sys.modules.get("torch._dynamo.exc"), "InvalidBackend", None)
    if invalid is None:
        return BackendNotFound(message)
    both = type("InvalidBackend", (BackendNotFound, invalid), {"__init__": Exception.__init__})
    return cast("BackendNotFound", both(message))


def imported(target: str) -> Any:
    """What ``module:attribute`` is by now; nothing if its module is not imported that far."""
    module, _, attribute = target.partition(":")
    first, *rest = attribute.split(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)  # runs no __getattr__ of it
    for name in rest:
        found = getattr(found, name, None)
    return found


def location_of(compiler_fn: object) -> str | None:
    """Return ``file:line`` of a function's definition, or its module where it has no code."""
    code = getattr(compiler_fn, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else type(compiler_fn).__module__


def unwrapped(compiler_fn: Any) -> Any:
    """Return what partials of it call in the end."""
    while isinstance(compiler_fn, functools.partial):
        compiler_fn = compiler_fn.func
    return compiler_fn


def module_of(compiler_fn: object) -> str | None:
    """Return the name of the module that defines a compiler function."""
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else None


def _loaded() -> Any:
    return sys.modules.get(TORCH_REGISTRY)


def _table(module: Any) -> dict[str, CompilerFn]:
    found = list(getattr(module, "_COMPILER_FNS", {}).items())  # another thread may register
    return {name: compiler_fn for name, compiler_fn in found if isinstance(name, str)}


def _tags(module: Any, name: str, compiler_fn: CompilerFn) -> tuple[str, ...]:
    by_name = getattr(module, "_BACKEND_TAGS", None)
    tags = by_name.get(name, ()) if by_name is not None else getattr(compiler_fn, "_tags", ())
    return tuple(tag for tag in tags if isinstance(tag, str))
