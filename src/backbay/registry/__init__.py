"""Which backends exist, where each came from, and whether it runs here.

Importing this package, and listing backends with it, never imports torch.
"""

from backbay.registry.availability import Availability
from backbay.registry.environment import Environment
from backbay.registry.registry import HIDDEN_TAGS, Registry
from backbay.registry.spec import BackendSpec, CompilerFn, Origin, Requirements

__all__ = [
    "HIDDEN_TAGS",
    "Availability",
    "BackendSpec",
    "CompilerFn",
    "Environment",
    "Origin",
    "Registry",
    "Requirements",
    "default_registry",
    "list_backends",
    "lookup_backend",
    "register_backend",
]

default_registry = Registry(shared_with_torch=True)
list_backends = default_registry.list_backends
lookup_backend = default_registry.lookup_backend
register_backend = default_registry.register_backend
