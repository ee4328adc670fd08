"""General rewrites, as passes to build backends from; each file says what it changes, and when not.

``remove_dead_code``, ``common_subexpressions``, ``fold_scalar_chain`` and ``fold_constants`` work
on Dynamo's graph, and with ``.at("aten")`` on the functional graphs of AOTAutograd.
``rewrite_gelu`` and ``rewrite_silu`` turn what is spelled out into one operator; ``silu_to_kernel``
calls our own kernel for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backbay.kit.rewrites.constants import fold_constants as fold_constants
    from backbay.kit.rewrites.dead_code import remove_dead_code as remove_dead_code
    from backbay.kit.rewrites.gelu import rewrite_gelu as rewrite_gelu
    from backbay.kit.rewrites.scalar_chain import fold_scalar_chain as fold_scalar_chain
    from backbay.kit.rewrites.silu import rewrite_silu as rewrite_silu
    from backbay.kit.rewrites.silu_kernel import silu_to_kernel as silu_to_kernel
    from backbay.kit.rewrites.subexpressions import common_subexpressions as common_subexpressions

_HOME_OF = {
    "common_subexpressions": "subexpressions",
    "fold_constants": "constants",
    "fold_scalar_chain": "scalar_chain",
    "remove_dead_code": "dead_code",
    "rewrite_gelu": "gelu",
    "rewrite_silu": "silu",
    "silu_to_kernel": "silu_kernel",
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 (a list of strings)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
