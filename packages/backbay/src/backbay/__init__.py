"""Backbay: the backend registry and development kit for torch.compile.

Importing this package never imports torch: names that need it are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME_OF = {
    "Availability": "backbay.registry",
    "BackbayError": "backbay.errors",
    "BackendSpec": "backbay.registry",
    "ExperimentalBackendWarning": "backbay.errors",
    "Option": "backbay.registry",
    "Registry": "backbay.registry",
    "Requirements": "backbay.registry",
    "Traits": "backbay.registry",
    "Workload": "backbay.proof",
    "choose": "backbay.choosing",
    "collect": "backbay.registry",
    "compare": "backbay.proof",
    "compile": "backbay.compiling",
    "compose": "backbay.kit.compose",
    "exported": "backbay.registry",
    "get_backend": "backbay.registry",
    "get_default_backend": "backbay.registry",
    "list_backends": "backbay.registry",
    "lookup_backend": "backbay.registry",
    "policy": "backbay.registry.policy",
    "refresh": "backbay.registry",
    "register_backend": "backbay.registry",
    "register_debug_backend": "backbay.registry",
    "register_experimental_backend": "backbay.registry",
    "registered": "backbay.registry",
    "set_default_backend": "backbay.registry",
    "unregister_backend": "backbay.registry",
}

_SUBPACKAGES = (
    "campaign",
    "compile_log",
    "explain",
    "proof",
    "race",
    "registry",
    "testing",
    "verify",
)

__all__ = ["__version__", *sorted(_HOME_OF), *_SUBPACKAGES]  # noqa: PLE0604 (every item is a string)

if TYPE_CHECKING:
    from backbay import compile_log as compile_log
    from backbay.choosing import choose as choose
    from backbay.compiling import compile as compile
    from backbay.errors import BackbayError as BackbayError
    from backbay.errors import ExperimentalBackendWarning as ExperimentalBackendWarning
    from backbay.kit.compose import compose as compose
    from backbay.proof import Workload as Workload
    from backbay.proof import compare as compare
    from backbay.registry import Availability as Availability
    from backbay.registry import BackendSpec as BackendSpec
    from backbay.registry import Option as Option
    from backbay.registry import Registry as Registry
    from backbay.registry import Requirements as Requirements
    from backbay.registry import Traits as Traits
    from backbay.registry import collect as collect
    from backbay.registry import exported as exported
    from backbay.registry import get_backend as get_backend
    from backbay.registry import get_default_backend as get_default_backend
    from backbay.registry import list_backends as list_backends
    from backbay.registry import lookup_backend as lookup_backend
    from backbay.registry import refresh as refresh
    from backbay.registry import register_backend as register_backend
    from backbay.registry import register_debug_backend as register_debug_backend
    from backbay.registry import register_experimental_backend as register_experimental_backend
    from backbay.registry import registered as registered
    from backbay.registry import set_default_backend as set_default_backend
    from backbay.registry import unregister_backend as unregister_backend
    from backbay.registry.policy import policy as policy


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF and name not in _SUBPACKAGES:
        raise AttributeError(f"module 'backbay' has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOME_OF.get(name, f"backbay.{name}"))
    except ModuleNotFoundError as error:
        from backbay.errors import missing_for  # noqa: PLC0415 (only a failure needs it)

        raise (missing_for(f"backbay.{name}", error) or error) from error
    return module if name in _SUBPACKAGES else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
