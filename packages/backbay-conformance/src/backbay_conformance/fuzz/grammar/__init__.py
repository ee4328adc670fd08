"""The kinds of statements that programs are made of, a family a file.

Each draws a statement that means something for every honest compiler: numbers stay small, nothing
is divided by zero, no choice hangs on the last bit, no two writes go to one place.
"""

from backbay_conformance.fuzz.grammar import (
    casts,
    complexes,
    indexing,
    pointwise,
    reductions,
    views,
    writes,
)
from backbay_conformance.fuzz.grammar.chooser import KINDS, Chooser, Kind

FAMILIES = (views, pointwise, casts, complexes, reductions, indexing, writes)

__all__ = ["FAMILIES", "KINDS", "Chooser", "Kind"]
