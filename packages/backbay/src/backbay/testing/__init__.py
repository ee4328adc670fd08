"""Assertions for owners of models: that a model still compiles as it did.

Importing this package imports no torch; an assertion does.
"""

from backbay.testing.compiles import NotAsExpected, assert_compiles

__all__ = ["NotAsExpected", "assert_compiles"]
