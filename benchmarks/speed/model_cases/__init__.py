"""The models that are timed: exact sizes, random weights, nothing downloaded.

A case has three sizes: ``full`` is what is timed; ``proof`` has the same model with fewer or
shorter inputs, for float64; ``tiny`` runs anywhere in seconds and says nothing about speed.
"""

from speed.model_cases.blocks import BLOCKS
from speed.model_cases.case import DTYPE, SIZES, Case, built
from speed.model_cases.language import LANGUAGE
from speed.model_cases.problems import SUFFIX, problem
from speed.model_cases.vision import VISION

__all__ = ["CASES", "DTYPE", "SIZES", "Case", "built", "case"]

CASES: tuple[Case, ...] = (*LANGUAGE, *VISION, *BLOCKS)


def case(name: str) -> Case:
    """Return a case by its name, or by the path of its file."""
    if name.endswith(SUFFIX):
        return problem(name)
    return next(x for x in CASES if x.name == name)
