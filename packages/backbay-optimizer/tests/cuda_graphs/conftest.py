"""What tests without a GPU share: one that is made up, and the cases of a real one."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu")]  # for what tests of two files read


@pytest.fixture
def device(monkeypatch):
    """The CPU in a CUDA device's place; what it gives tells how often something was recorded."""
    import fake_device

    from backbay import compile_log

    compile_log.clear()
    return fake_device.install(monkeypatch)
