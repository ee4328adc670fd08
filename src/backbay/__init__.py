"""Backbay: the backend registry and development kit for torch.compile.

Importing this package never imports torch: names that need it are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_HOME_OF = {
    "Availability": "backbay.registry",
    "BackbayError": "backbay.errors",
    "BackendSpec": "backbay.registry",
    "Registry": "backbay.registry",
    "Workload": "backbay.proof",
    "compare": "backbay.proof",
    "list_backends": "backbay.registry",
    "lookup_backend": "backbay.registry",
    "register_backend": "backbay.registry",
}

_SUBPACKAGES = ("proof", "race", "registry")

__all__ = ["__version__", *sorted(_HOME_OF), *_SUBPACKAGES]  # noqa: PLE0604 (every item is a string)

if TYPE_CHECKING:
    from backbay.errors import BackbayError as BackbayError
    from backbay.proof import Workload as Workload
    from backbay.proof import compare as compare
    from backbay.registry import Availability as Availability
    from backbay.registry import BackendSpec as BackendSpec
    from backbay.registry import Registry as Registry
    from backbay.registry import list_backends as list_backends
    from backbay.registry import lookup_backend as lookup_backend
    from backbay.registry import register_backend as register_backend


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"backbay.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'backbay' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
