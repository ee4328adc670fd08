"""The model libraries, which are optional, and imported so that nothing is ever downloaded."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from backbay.causes import one_line
from backbay.errors import InputError

INSTALL = "pip install 'backbay[models]'"

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_defined: list[Any] = []
"""Schemas live as long as the library object that defined them."""


def require_installed(package: str, workload: str) -> None:
    """Check that a package is there, without importing it.

    Raises:
        InputError: it is not; the message has the line that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{workload} needs {package}, which is not installed: {INSTALL}")


def require(package: str, workload: str) -> ModuleType:
    """Import a package that a workload needs.

    Raises:
        InputError: it is not installed, or it is and cannot be imported.
    """
    require_installed(package, workload)
    ensure_torchvision_imports()
    try:
        return importlib.import_module(package)
    except Exception as error:  # broken installations raise anything
        raise InputError(
            f"{workload} needs {package}, which is installed and does not import "
            f"({one_line(error)}): {INSTALL}"
        ) from error


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Make every request of huggingface_hub fail meanwhile; the setting is left as it was found.

    The constant is set because the environment variable of the same name is read once, at import:
    it would come too late for a process that has the library, and stay for one that has not.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        yield
        return
    constants: Any = importlib.import_module("huggingface_hub.constants")
    found = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = found


def ensure_torchvision_imports() -> None:
    """Import torchvision, if installed, where its operators do not load, as beside another torch.

    Its import then fails on operators whose schemas are missing, and timm's and transformers'
    imports with it, although no model raced here calls those operators: giving the two schemas is
    enough. Where torchvision imports, or fails in any other way, nothing is touched.

    Raises whatever its import raises, apart from the one error that can be mended.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
        import torch  # noqa: PLC0415 (references are checked without it)

        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}{_SCHEMA}")  # type: ignore[no-untyped-call]
        _defined.append(library)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # it is half imported
        importlib.import_module("torchvision")
