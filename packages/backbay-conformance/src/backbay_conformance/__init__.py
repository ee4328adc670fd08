"""Is a backend right? A graded suite for any backend, by name: ``backbay conform NAME``.

The same cases run under pytest, from any repository::

    pytest --pyargs backbay_conformance --backend NAME

Nothing here imports torch before a case is run, nor anything else before it is asked for: pytest
loads the plugin wherever it runs.
"""

import importlib
from typing import TYPE_CHECKING, Any

import backbay

__version__ = "0.1.0"

if backbay.__version__ != __version__:
    raise ImportError(
        f"backbay-conformance {__version__} needs backbay of the same version, and this is backbay "
        f"{backbay.__version__}: pip install 'backbay=={__version__}'"
    )

_HOME_OF = {
    "FAILURES": "record",
    "LEVELS": "record",
    "STATUSES": "record",
    "LevelSummary": "record",
    "Profile": "record",
    "Result": "record",
    "Statement": "record",
    "Status": "record",
    "conform": "api",
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 (every item is a string)

if TYPE_CHECKING:
    from backbay_conformance.api import conform as conform
    from backbay_conformance.record import FAILURES as FAILURES
    from backbay_conformance.record import LEVELS as LEVELS
    from backbay_conformance.record import STATUSES as STATUSES
    from backbay_conformance.record import LevelSummary as LevelSummary
    from backbay_conformance.record import Profile as Profile
    from backbay_conformance.record import Result as Result
    from backbay_conformance.record import Statement as Statement
    from backbay_conformance.record import Status as Status


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'backbay_conformance' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"backbay_conformance.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        from backbay.errors import missing_for  # noqa: PLC0415 (only a failure needs it)

        raise (missing_for(f"backbay_conformance.{name}", error) or error) from error
    return getattr(module, name)
