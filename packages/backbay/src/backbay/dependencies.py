"""The packages that parts of Backbay need and that ``pip install backbay`` alone does not bring."""

import importlib.util
import sys

from backbay.errors import PACKAGES, missing

_USUAL = ("torch", "race")


def check_installed(what: str, *extras: str) -> None:
    """Check that what extras bring is installed, without importing it.

    Args:
        what: what needs it, for the message.
        extras: their names; default: those that races need.

    Raises:
        MissingDependency: one of them is not; the message says which, and what to install.
    """
    needed = (x for extra in extras or _USUAL for x in PACKAGES[extra])
    absent = [x for x in needed if not _is_installed(x)]
    if absent:
        raise missing(what, absent)


def _is_installed(module: str) -> bool:
    if sys.modules.get(module) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
