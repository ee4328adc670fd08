"""Diagnoses a model under torch.compile: what to fix first, and what that gains.

What Dynamo did comes from `backbay.explain`; kernels and their time from Inductor and torch's
profiler; and each remedy that can be carried out is tried: proven right, and timed beside what
there was. A gain that was not measured is not claimed. Importing this package imports no torch.
"""

from backbay.diagnose.api import Limits, run
from backbay.diagnose.attaching import Attached, attach
from backbay.diagnose.record import (
    CompiledGraph,
    Diagnosis,
    KernelRecord,
    LimitRecord,
    NeighbourRecord,
    OutsideRecord,
    RankedFinding,
    SideRecord,
    StepRecord,
    TrialRecord,
    WhiteBox,
)

__all__ = [
    "Attached",
    "CompiledGraph",
    "Diagnosis",
    "KernelRecord",
    "LimitRecord",
    "Limits",
    "NeighbourRecord",
    "OutsideRecord",
    "RankedFinding",
    "SideRecord",
    "StepRecord",
    "TrialRecord",
    "WhiteBox",
    "attach",
    "run",
]
