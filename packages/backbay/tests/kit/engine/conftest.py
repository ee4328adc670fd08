"""Each test of engines has a cache, a compile log and random numbers of its own."""

import pytest
import torch

from backbay import compile_log


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    torch.compiler.reset()
    compile_log.clear()
    torch.manual_seed(0)
