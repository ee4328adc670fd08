"""Is a backend right? A graded suite for any backend, by name: ``backbay conform NAME``.

The same cases run under pytest, from any repository::

    pytest --pyargs backbay.conformance --backend NAME

Nothing here imports torch before a case is run.
"""

from backbay.conformance.api import conform
from backbay.conformance.record import (
    FAILURES,
    LEVELS,
    STATUSES,
    LevelSummary,
    Profile,
    Result,
    Statement,
    Status,
)

__all__ = [
    "FAILURES",
    "LEVELS",
    "STATUSES",
    "LevelSummary",
    "Profile",
    "Result",
    "Statement",
    "Status",
    "conform",
]
