"""What tests on a GPU share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what tests of two files read


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Know nothing of what an earlier test compiled, or an earlier run timed."""
    import torch

    from backbay_optimizer.backend import backbay

    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    torch.compiler.reset()
    backbay.reset()
    if torch.cuda.is_available():
        # Where torch's own mode failed in a capture, this thread is left in the capture's stream,
        # and the generator of random numbers takes itself for captured until one ends well.
        torch.cuda.set_stream(torch.cuda.default_stream())
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass


@pytest.fixture
def replays(monkeypatch):
    """What is replayed, one recording a call; the compile log is empty."""
    from backbay import compile_log
    from backbay_optimizer.cuda_graphs.recording import Recording

    counted, replay = [], Recording.replay

    def counting(self, inputs):
        counted.append(self)
        return replay(self, inputs)

    monkeypatch.setattr(Recording, "replay", counting)
    compile_log.clear()
    return counted
