"""What tests of passes, kernels and tuning share."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def codes_for_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """What Inductor writes for the forward and backward of a function, were it on a GPU."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    yield importlib.import_module("speed.cuda_code").training_codes_for_cuda
    for name in [x for x in sys.modules if x.split(".")[0] == "speed"]:
        del sys.modules[name]
