"""Explains what torch.compile and a backend do with a model.

Graphs, graph breaks, passes that fired and that nearly did, guards, recompiles: what torch and the
kit say of them, gathered and put in words; nothing is guessed. Importing this package imports no
torch; `run` does.
"""

from backbay.explain.api import run
from backbay.explain.codes import CODES, Code, named, selection
from backbay.explain.findings import failing
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    Explanation,
    FindingRecord,
    GraphRecord,
    GuardRecord,
    NearMissRecord,
    NodeRecord,
    PassRecord,
    ProblemRecord,
    ReasonRecord,
    RecompileRecord,
    StageRecord,
)

__all__ = [
    "CODES",
    "BreakRecord",
    "CallRecord",
    "Code",
    "Explanation",
    "FindingRecord",
    "GraphRecord",
    "GuardRecord",
    "NearMissRecord",
    "NodeRecord",
    "PassRecord",
    "ProblemRecord",
    "ReasonRecord",
    "RecompileRecord",
    "StageRecord",
    "failing",
    "named",
    "run",
    "selection",
]
