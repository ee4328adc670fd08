"""The suite as a test file of pytest; see `backbay_conformance.plugin`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from backbay_conformance.pytest_run import PytestCase

__all__ = ["test_case"]


def test_case(conformance_case: "PytestCase", request: "pytest.FixtureRequest") -> None:
    """Put one case to the backend."""
    status = conformance_case.run()
    request.node.user_properties.append(("conformance_case", (conformance_case.id, status)))
    conformance_case.judge()
