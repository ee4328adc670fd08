"""Assertions for owners of models: that a model still compiles as it did.

Importing this package imports no torch; an assertion does.
"""

from backbay.testing.compiles import assert_compiles

__all__ = ["assert_compiles"]
