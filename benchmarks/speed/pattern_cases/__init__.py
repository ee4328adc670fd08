"""Pieces of models, at a few shapes each: random weights and inputs, bfloat16."""

from speed.pattern_cases.attention import ATTENTION
from speed.pattern_cases.images import IMAGES
from speed.pattern_cases.losses import LOSSES
from speed.pattern_cases.norms import NORMS
from speed.pattern_cases.products import PRODUCTS
from speed.pattern_cases.program import TINY, Pattern, Program, program

__all__ = ["PATTERNS", "TINY", "Pattern", "Program", "pattern", "program"]

PATTERNS: tuple[Pattern, ...] = (*ATTENTION, *NORMS, *IMAGES, *LOSSES, *PRODUCTS)


def pattern(name: str) -> Pattern:
    """Return a pattern by its name."""
    return next(x for x in PATTERNS if x.name == name)
