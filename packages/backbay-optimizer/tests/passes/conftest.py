"""A pass that hoists, for passes that ask whether another does."""

from typing import Any

import pytest

from backbay.kit import Pass


class Idle(Pass):
    """Does nothing."""

    def run(self, graph_module, context):
        return 0


class Hoists(Idle):
    """Does nothing, and says that what only parameters decide is computed once."""

    hoists = True


@pytest.fixture
def hoists(request) -> Any:
    """Return a pass that says so, or, for False, one that does not."""
    return Hoists() if getattr(request, "param", True) else Idle()
