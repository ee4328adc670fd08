"""Which backends exist, where each came from, and whether it runs here.

Importing this package, and listing backends with it, never imports torch.
"""

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
get_backend = default_registry.get_backend
get_default_backend = default_registry.get_default_backend
list_backends = default_registry.list_backends
lookup_backend = default_registry.lookup_backend
refresh = default_registry.refresh
register_backend = default_registry.register_backend
register_debug_backend = default_registry.register_debug_backend
register_experimental_backend = default_registry.register_experimental_backend
registered = default_registry.registered
set_default_backend = default_registry.set_default_backend
unregister_backend = default_registry.unregister_backend
