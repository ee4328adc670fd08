"""Is a backend right on a model? The golden check alone: nothing is timed, everything is judged.

Forward, gradients, steps of training, other batch sizes; and of what is wrong, the first module
that is wrong alone. Importing this package imports no torch; what `run` starts does.
"""

from backbay.verify.api import DEFAULT_BACKEND, run
from backbay.verify.record import (
    BackendRecord,
    BlameRecord,
    CheckRecord,
    CurveRecord,
    Limits,
    ProofRecord,
    Report,
)

__all__ = [
    "DEFAULT_BACKEND",
    "BackendRecord",
    "BlameRecord",
    "CheckRecord",
    "CurveRecord",
    "Limits",
    "ProofRecord",
    "Report",
    "run",
]
