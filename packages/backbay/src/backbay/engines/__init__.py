"""Tries engines where each is alone: a virtual environment of its own, beside the torch asked for.

What an engine needs may not fit what another needs, and an installation may break what was there.
So each is installed by the line in the catalogue, tried, raced, and written into a table.
"""

from backbay.engines.api import run
from backbay.engines.record import Report, Row

__all__ = ["Report", "Row", "run"]
