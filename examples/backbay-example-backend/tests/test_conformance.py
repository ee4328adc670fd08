"""Backbay's conformance suite, as pyproject.toml sets it: a test for each case."""

from backbay_conformance.test_conformance import test_case

__all__ = ["test_case"]
