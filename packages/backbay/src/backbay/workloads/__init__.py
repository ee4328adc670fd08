"""What is raced: models and inputs, built in or the user's own, named by a reference.

========================  =========================================================================
``decoder[@SIZE]``        a Llama-style decoder in plain torch; needs nothing else
``hf:NAME[@SIZE]``        a transformers model, built from a configuration with random weights
``diffusers:NAME[@SIZE]`` a part of a diffusion pipeline, likewise
``timm:NAME[@SIZE]``      any timm model, with random weights
``file.py:function``      the user's own: a function that returns ``(model, args)``
``module:function``       likewise
========================  =========================================================================

Nothing is ever downloaded. Importing this package needs no torch, nor do ``known``, ``parse`` and
``check``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from backbay.workloads.reference import DEFAULT, SIZES, Reference, check, known, parse

__all__ = ["DEFAULT", "SIZES", "Reference", "check", "known", "load", "parse"]

if TYPE_CHECKING:
    from backbay.workloads.loading import load as load


def __getattr__(name: str) -> Any:
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("backbay.workloads.loading").load
