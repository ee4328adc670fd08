"""Import torchvision where its compiled operators do not load, as beside another build of torch.

Its import then fails on operators whose schemas are missing, and timm's and transformers' imports
with it, although no model raced here calls those operators. Giving the two schemas is enough. Where
torchvision imports, or fails in any other way, nothing is touched.
"""

import importlib
import importlib.util
import sys

import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_defined: list[torch.library.Library] = []
"""Schemas live as long as the library object that defined them."""


def ensure_torchvision_imports() -> None:
    """Import torchvision, if installed; call before the first import of timm or transformers.

    Raises whatever its import raises, apart from the one error that can be mended.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
        _define_schemas()
        _forget_half_imported()
        importlib.import_module("torchvision")


def _define_schemas() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}{_SCHEMA}")  # type: ignore[no-untyped-call]
    _defined.append(library)


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
