"""What the tests of explanations share."""

import linecache
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("models.py")


@pytest.fixture
def reference():
    """Name one of the workloads in models.py."""
    return lambda name: f"{MODELS}:{name}"


@pytest.fixture
def line():
    """Return a line of models.py as reports do, found by its code."""

    def found(code: str) -> str:
        lines = MODELS.read_text().splitlines()
        (number,) = [n for n, text in enumerate(lines, 1) if text.strip() == code]
        linecache.checkcache(str(MODELS))
        return f"{MODELS}:{number}: {code}"

    return found
