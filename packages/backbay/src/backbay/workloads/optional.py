"""The model libraries, which are optional: ``pip install 'backbay[models]'``."""

import importlib
import importlib.util
from types import ModuleType

from backbay.errors import InputError

INSTALL = "pip install 'backbay[models]'"


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
    try:
        return importlib.import_module(package)
    except Exception as error:  # broken installations raise anything
        first_line = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"{workload} needs {package}, which is installed and does not import "
            f"({type(error).__name__}: {first_line}): {INSTALL}"
        ) from error
