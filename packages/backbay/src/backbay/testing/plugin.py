"""The fixtures that pytest has where Backbay is installed; whoever uses none pays nothing."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from backbay.testing.compiles import AssertCompiles


@pytest.fixture
def assert_compiles() -> "AssertCompiles":
    """Return `backbay.testing.assert_compiles`."""
    from backbay.testing import compiles  # noqa: PLC0415 (for tests that ask for it)

    return compiles.assert_compiles
