"""The packages that parts of Backbay need and that ``pip install backbay`` alone does not bring."""

import importlib.util
import sys

from backbay.errors import MissingDependency

PACKAGES = {"torch": ("torch",), "race": ("numpy", "matplotlib", "psutil")}
"""Modules that each extra brings."""


def check_installed(what: str, *extras: str) -> None:
    """Check that what extras bring is installed, without importing it.

    Args:
        what: what needs it, for the message.
        extras: their names; default: all.

    Raises:
        MissingDependency: one of them is not; the message says which, and what to install.
    """
    needed = (x for extra in extras or PACKAGES for x in PACKAGES[extra])
    missing = [x for x in needed if not _is_installed(x)]
    if missing:
        raise _missing(what, missing)


def missing_for(what: str, error: ModuleNotFoundError) -> MissingDependency | None:
    """Return what to raise for an import that failed; nothing if an extra does not bring it."""
    module = (error.name or "").partition(".")[0]
    known = {x for modules in PACKAGES.values() for x in modules}
    return _missing(what, [module]) if module in known else None


def _missing(what: str, modules: list[str]) -> MissingDependency:
    extras = [extra for extra, brought in PACKAGES.items() if set(brought) & set(modules)]
    verb = "is" if len(modules) == 1 else "are"
    return MissingDependency(
        f"{what} needs {', '.join(modules)}, which {verb} not installed: "
        f"pip install 'backbay[{','.join(extras)}]'"
    )


def _is_installed(module: str) -> bool:
    if sys.modules.get(module) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
