"""What was decided for a model before: kept and looked up. No torch."""

from backbay.choose.decision import Arm, Decision, Place
from backbay.choose.store import Store, StoreError

__all__ = ["Arm", "Decision", "Place", "Store", "StoreError"]
