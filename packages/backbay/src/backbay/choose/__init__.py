"""What was decided for a model before, and what was measured: kept and looked up. No torch."""

from backbay.choose.decision import Arm, Decision, Place
from backbay.choose.store import Store, StoreError

__all__ = ["Arm", "Decision", "Place", "Store", "StoreError"]
