"""A metric over the races that were kept: one table, one page. No torch, and no race, is needed."""

from backbay.history.record import METRICS, History, Metric
from backbay.history.tracing import traced

__all__ = ["METRICS", "History", "Metric", "traced"]
