"""What was decided for a model before: kept and looked up. No torch."""

from backbay.decisions.arm import Arm, parse_arm, parse_arms
from backbay.decisions.decision import Decision, Place
from backbay.decisions.store import Store, StoreError

__all__ = ["Arm", "Decision", "Place", "Store", "StoreError", "parse_arm", "parse_arms"]
