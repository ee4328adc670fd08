"""What the registry takes from torch's own; ``sharing.py`` is the other way.

torch is imported here only when a backend of torch's is loaded; what other code has registered with
torch is read only where torch's registry is already in memory.
"""

import sys
from collections.abc import Iterator
from typing import Any, cast

from backbay.errors import BackendLoadError
from backbay.registry.sharing import TORCH_REGISTRY
from backbay.registry.spec import BackendSpec, CompilerFn, Origin


def load_from_torch(name: str) -> CompilerFn:
    """Give the compiler function that torch's registry has under a name.

    Raises:
        BackendLoadError: torch's registry raised.
    """
    from torch._dynamo.backends.registry import lookup_backend  # noqa: PLC0415 (torch takes a second)

    try:
        return cast("CompilerFn", lookup_backend(name))
    except Exception as error:
        raise BackendLoadError(f"torch could not load its backend {name!r}: {error}") from error


def registered_in_torch() -> Iterator[BackendSpec]:
    """Give what this process registered with torch; nothing where its registry is not loaded."""
    module: Any = sys.modules.get(TORCH_REGISTRY)
    for name, compiler_fn in list(getattr(module, "_COMPILER_FNS", {}).items()):
        origin = Origin(kind="process", location=location_of(compiler_fn))
        yield BackendSpec(name=name, origin=origin, tags=_tags(module, name, compiler_fn))


def held_by_torch(name: str) -> CompilerFn | None:
    """Give what this process has registered with torch under a name, if torch's is loaded."""
    module: Any = sys.modules.get(TORCH_REGISTRY)
    return cast("CompilerFn | None", getattr(module, "_COMPILER_FNS", {}).get(name))


def location_of(compiler_fn: object) -> str | None:
    """Give ``file:line`` of a function's definition, or its module where it has no code."""
    code = getattr(compiler_fn, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return getattr(compiler_fn, "__module__", None)


def _tags(module: Any, name: str, compiler_fn: CompilerFn) -> tuple[str, ...]:
    # torch 2.14 moved the tags from an attribute of the function to a dictionary beside it.
    by_name = getattr(module, "_BACKEND_TAGS", None)
    tags = by_name.get(name, ()) if by_name is not None else getattr(compiler_fn, "_tags", ())
    return tuple(tags)
