"""Which backends exist, where each came from, and whether it runs here.

Importing this package, and listing backends with it, never imports torch.
"""

from typing import TYPE_CHECKING, Any

from backbay.registry.availability import Availability
from backbay.registry.environment import Environment
from backbay.registry.known import HIDDEN_TAGS
from backbay.registry.policy import Policy
from backbay.registry.registry import Registry, default_registry
from backbay.registry.resolution import Candidate, Resolution
from backbay.registry.spec import (
    BackendSpec,
    CompilerFn,
    KnownFault,
    Option,
    Origin,
    Requirements,
    Traits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backbay.registry.configured import ConfiguredBackend
    from backbay.registry.names import BackendName

__all__ = [
    "HIDDEN_TAGS",
    "Availability",
    "BackendSpec",
    "Candidate",
    "CompilerFn",
    "Environment",
    "KnownFault",
    "Option",
    "Origin",
    "Policy",
    "Registry",
    "Requirements",
    "Resolution",
    "Traits",
    "collect",
    "default_registry",
    "exported",
    "get_backend",
    "get_default_backend",
    "list_backends",
    "lookup_backend",
    "refresh",
    "register_backend",
    "register_debug_backend",
    "register_experimental_backend",
    "registered",
    "set_default_backend",
    "unregister_backend",
]

collect = default_registry.collect
exported = default_registry.exported
get_default_backend = default_registry.get_default_backend
list_backends = default_registry.list_backends
refresh = default_registry.refresh
register_backend = default_registry.register_backend
register_debug_backend = default_registry.register_debug_backend
register_experimental_backend = default_registry.register_experimental_backend
registered = default_registry.registered
unregister_backend = default_registry.unregister_backend

if TYPE_CHECKING:
    # Of the names that are written here a typo is an error; a registry's methods take any text.
    def get_backend(
        name: BackendName, *, mode: str | None = None, options: Mapping[str, Any] | None = None
    ) -> ConfiguredBackend:
        """As `Registry.get_backend`."""

    def lookup_backend(compiler_fn: BackendName | CompilerFn) -> CompilerFn:
        """As `Registry.lookup_backend`."""

    def set_default_backend(backend: BackendName | CompilerFn | None) -> None:
        """As `Registry.set_default_backend`."""
else:
    get_backend = default_registry.get_backend
    lookup_backend = default_registry.lookup_backend
    set_default_backend = default_registry.set_default_backend
