"""A compiler function with guard filters, as one backend: the filters are part of what it is.

Dynamo keeps compiled code by backend, and compares backends by ``==``; the filter is no part of
that. Two compilations of one function, with another filter each, would share what the first one
compiled, and the second one's filter would never be asked.
"""

import sys
from collections.abc import Sequence
from typing import Any

from backbay.guards.checking import Action, take, watched
from backbay.guards.filters import Filters
from backbay.registry.bridge import CONTRACT
from backbay.registry.spec import CompilerFn


class Filtered:
    """A compiler function, its guard filters, and whether what they leave out is checked."""

    def __init__(self, compiler_fn: CompilerFn, filters: Filters, action: Action | None) -> None:
        self._compiler_fn = compiler_fn
        self.filters = filters
        self.action = action
        # Torch's own wrapper of Inductor has no __name__.
        named = getattr(compiler_fn, "__name__", None) or getattr(compiler_fn, "compiler_name", "")
        self.__name__: str = named or type(compiler_fn).__name__

    def __call__(self, graph_module: Any, example_inputs: Any, **given: Any) -> Any:
        """Compile a graph; with an action, the compiled code asks after the guards left out."""
        compiled = self._compiler_fn(graph_module, example_inputs, **given)
        if self.action is None:
            return compiled
        return watched(compiled, self.filters.names, self.action)

    def keep(self, entries: Sequence[Any]) -> list[bool]:
        """Return for each guard whether it is kept: torch.compile's ``guard_filter_fn``."""
        kept = self.filters(entries)
        if self.action is not None:
            take(entries, kept, sys._getframe(1))  # noqa: SLF001 (Dynamo's frame holds the guards)
        return kept

    def __getattr__(self, name: str) -> Any:
        # Dynamo asks hasattr(backend, "reset") and the like: the backend's own answer counts.
        if name in CONTRACT:
            return getattr(self._compiler_fn, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filtered):
            return NotImplemented
        same = bool(self._compiler_fn == other._compiler_fn)
        return same and (self.filters, self.action) == (other.filters, other.action)

    def __hash__(self) -> int:
        return hash((self.__name__, self.filters, self.action))

    def __repr__(self) -> str:
        return f"Filtered({self._compiler_fn!r}, {self.filters!r}, {self.action!r})"
