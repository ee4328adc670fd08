"""torch.compile's public compiler APIs work with every backend that ships.

Each test runs with the graphs compiled by eager, and, marked slow, with Inductor, as shipped.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import backbay
from backbay import compile_log

sys.path.insert(0, str(Path(__file__).parent))
from subjects import FAST


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    counters.clear()
    compile_log.clear()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.fixture(
    params=[*FAST, *(pytest.param(f"{x}+inductor", marks=pytest.mark.slow) for x in FAST)]
)
def backend(request, monkeypatch):
    """Return a shipped backend by its object: torch's registry would keep the name."""
    name, _, with_inductor = request.param.partition("+")
    found = backbay.lookup_backend(name)
    if name == "backbay.default":
        with backbay.policy(default="inductor" if with_inductor else "eager"):
            yield found
        return
    if not with_inductor and found.compile is None:
        monkeypatch.setattr(type(found), "codegen", "eager")
    yield found
