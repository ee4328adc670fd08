"""Outputs whose memory is written anew are a fault, unless torch says so of one that is read."""

import pytest
import torch

from backbay.judge.runs import Runs
from backbay.proof import Workload


@pytest.fixture
def runs():
    workload = Workload(model=torch.nn.Identity(), args=(torch.ones(3),))
    found = Runs(workload, torch.device("cpu"), train=False, seed=0)
    buffer = torch.zeros(3)
    for _ in range(3):
        found.call(lambda x: buffer.add_(x), None, fresh=False)
    return found


def test_silence_passes(runs):
    assert runs.overwritten() == "output of call 1"
    assert not runs.says_overwritten


def test_a_gradient_that_is_overwritten_passes():
    workload = Workload(model=torch.nn.Linear(3, 3), args=(torch.ones(2, 3),))
    found = Runs(workload, torch.device("cpu"), train=True, seed=0)
    buffer = torch.zeros(3)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            return x + bias

        @staticmethod
        def backward(ctx, given):
            return given, buffer.copy_(given.sum(0) * torch.rand(())).view(3)

    for _ in range(4):
        found.call(lambda x: Layer.apply(x, workload.model.bias))
    assert found.overwritten() is None  # each call begins at the same random state
    torch.nn.init.ones_(buffer)
    assert found.overwritten() == "gradient of bias of call 3"


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_what_torch_shows_beside_what_it_refuses_is_a_fault(runs, monkeypatch, refused):
    equal, asked = torch.equal, []

    def refusing(one, other):
        asked.append(one)
        if len(asked) == refused:
            raise RuntimeError("output of CUDAGraphs that has been overwritten by a subsequent run")
        return equal(one, other)

    monkeypatch.setattr(torch, "equal", refusing)
    assert runs.overwritten() is None
    assert runs.says_overwritten


def test_new_values_at_an_old_address_have_a_new_version():
    """Else a cache keyed by address and version would be right, and found out by chance alone."""
    workload = Workload(model=torch.nn.Identity(), args=(torch.ones(3),))
    found, seen = Runs(workload, torch.device("cpu"), train=False, seed=0), []

    def look(x):
        seen.append((x.data_ptr(), x._version, x.tolist()))
        return x + 1

    found.call(look, None, fresh=False)
    found.call(look, (torch.full((3,), 2.0),), fresh=False)
    (address, version, values), (again, later, others) = seen
    assert (again, later) == (address, version)
    assert values != others
