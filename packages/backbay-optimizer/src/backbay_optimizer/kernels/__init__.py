"""Operators of the optimizing backend; a file each, in the order that `backbay.kit.kernels` has."""

import functools
import importlib.util


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed, without importing it."""
    return importlib.util.find_spec("triton") is not None
