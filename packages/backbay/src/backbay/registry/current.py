"""Which registry is being compiled from: a backend looks up its code generator in the same one."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backbay.registry.registry import Registry

current_registry: ContextVar["Registry | None"] = ContextVar("current_registry", default=None)
"""Set by `ConfiguredBackend` while it compiles a graph."""
