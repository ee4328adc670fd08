"""Races backends side by side on a workload: prove, time, decide, report.

Importing this package imports no torch; a race starts child processes that do.
"""

from backbay.race.api import run
from backbay.race.objective import Objective
from backbay.race.record import Decision, Report, Result, VerdictRecord
from backbay.race.timing import Limits
from backbay.workloads.setup import DTYPES

__all__ = [
    "DTYPES",
    "Decision",
    "Limits",
    "Objective",
    "Report",
    "Result",
    "VerdictRecord",
    "run",
]
