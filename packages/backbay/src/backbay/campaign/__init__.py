"""Many workloads, each raced by itself: one table, one page, and what is done stays done.

Importing this package imports no torch; races start child processes that do.
"""

from backbay.campaign.api import run
from backbay.campaign.plan import Plan, Unit, read
from backbay.campaign.record import Campaign, Row

__all__ = ["Campaign", "Plan", "Row", "Unit", "read", "run"]
