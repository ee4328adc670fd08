"""What was decided for a model before: kept and looked up. No torch."""

from backbay.decisions.arm import Arm, options_text, parse_arm, parse_arms, parse_options
from backbay.decisions.decision import GAIN, Decision, Place
from backbay.decisions.store import Store, StoreError

__all__ = [
    "GAIN",
    "Arm",
    "Decision",
    "Place",
    "Store",
    "StoreError",
    "options_text",
    "parse_arm",
    "parse_arms",
    "parse_options",
]
