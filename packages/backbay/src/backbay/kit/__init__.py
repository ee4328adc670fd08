"""Write a backend as passes, patterns and a code generator; the kit does the rest.

These names are public, and imported when they are first asked for. So are the modules
``rewrites``, ``codegen``, ``bisect`` and ``aot``, by their own names.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backbay.kit.backend import Backend as Backend
    from backbay.kit.backend import Compilation as Compilation
    from backbay.kit.backend import option_rows as option_rows
    from backbay.kit.observing import Observer as Observer
    from backbay.kit.observing import collected as collected
    from backbay.kit.observing import observed_by as observed_by
    from backbay.kit.observing import unobserved as unobserved
    from backbay.kit.observing import verified as verified
    from backbay.kit.passes import Call as Call
    from backbay.kit.passes import NotApplicable as NotApplicable
    from backbay.kit.passes import Pass as Pass
    from backbay.kit.passes import PassContext as PassContext
    from backbay.kit.passes import PassReport as PassReport
    from backbay.kit.passes import Replacement as Replacement
    from backbay.kit.passes import Requires as Requires
    from backbay.kit.passes import Rewrite as Rewrite
    from backbay.kit.passes import graph_pass as graph_pass
    from backbay.kit.passes import option as option
    from backbay.kit.passes import profitable_where as profitable_where
    from backbay.kit.passes import rewrite_pass as rewrite_pass
    from backbay.kit.pipeline import run_passes as run_passes

_NAMES = {
    "backend": ("Backend", "Compilation", "option_rows"),
    "observing": ("Observer", "collected", "observed_by", "unobserved", "verified"),
    "passes": (
        "Call",
        "NotApplicable",
        "Pass",
        "PassContext",
        "PassReport",
        "Replacement",
        "Requires",
        "Rewrite",
        "graph_pass",
        "option",
        "profitable_where",
        "rewrite_pass",
    ),
    "pipeline": ("run_passes",),
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 (a list of strings)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
