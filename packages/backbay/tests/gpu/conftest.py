"""What tests on a GPU share."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Know nothing of what an earlier test compiled, or an earlier run timed."""
    import torch

    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    torch.compiler.reset()
