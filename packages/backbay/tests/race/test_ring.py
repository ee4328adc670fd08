"""Each call of a block has inputs of its own, and what a backend leaves changed is seen."""

import itertools
import warnings

import pytest
import torch

from backbay.judge import process_state
from backbay.proof import Step, Workload
from backbay.race.ring import Ring


def inputs(ring):
    return [x for step in ring.steps for _, x in step.inputs]


@pytest.fixture
def ring():
    torch.manual_seed(0)
    step = Step(Workload(torch.nn.Linear(4, 4), (torch.randn(6, 4),)), train=False)
    return Ring(step, [True], 5)


def test_no_two_calls_of_a_block_compute_the_same_and_none_is_at_the_address_of_another(ring):
    ring.renew(1, (torch.ones(6, 4),), used=5)
    assert len({x.data_ptr() for x in inputs(ring)}) == 5
    assert all(x.data_ptr() % 64 == 0 for x in inputs(ring)[1:])
    for one, other in itertools.combinations(inputs(ring), 2):
        assert not torch.equal(one, other)
    assert torch.equal(inputs(ring)[-1], torch.ones(6, 4))


def test_a_renewal_changes_values_and_neither_addresses_nor_versions(ring):
    ring.renew(1, (torch.ones(6, 4),), used=5)
    before = [(x.data_ptr(), x._version, x.clone()) for x in inputs(ring)[1:-1]]
    ring.renew(2, (torch.ones(6, 4),), used=5)
    for (address, version, value), now in zip(before, inputs(ring)[1:-1], strict=True):
        assert (now.data_ptr(), now._version) == (address, version)
        assert not torch.equal(now, value)


def test_inputs_that_are_partly_the_same_memory_are_apart_in_later_calls():
    memory = torch.arange(12.0)
    step = Step(Workload(torch.add, (memory[:8], memory[4:])), train=False)
    ring = Ring(step, [False, False], 3)
    for one, other in (x.args for x in ring.steps):
        assert one[4:].data_ptr() == other.data_ptr()
        assert torch.equal(one + other, memory[:8] + memory[4:])
    assert len({x.data_ptr() for x in inputs(ring)}) == 6


def test_what_does_not_vary_stays_and_has_addresses_of_its_own():
    step = Step(Workload(torch.nn.Identity(), (torch.tensor([0, 1, 1]),)), train=False)
    ring = Ring(step, [False], 3)
    ring.renew(1, (torch.tensor([0, 1, 1]),), used=3)
    assert all(x.tolist() == [0, 1, 1] for x in inputs(ring))
    assert len({x.data_ptr() for x in inputs(ring)}) == 3


def test_what_others_compute_with_is_told_from_what_only_costs_time():
    before = process_state.state()
    assert process_state.changed(before, process_state.state()) == ()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        after = process_state.state()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    dtype = "the default dtype (torch.float32 -> torch.float64)"
    assert process_state.changes_values(before, after) == (dtype,)
    assert set(process_state.changed(before, after)) == {
        dtype,
        "matmul precision (highest -> medium)",
    }


def test_what_torch_sets_for_cuda_graphs_is_held_against_a_mode(monkeypatch):
    before = process_state.state()
    monkeypatch.setenv("DISABLE_CUPTI_LAZY_REINIT", "1")
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    assert process_state.changed(before, process_state.state()) == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert process_state.changed(before, process_state.state()) == ()
        warnings.simplefilter("error")
        (said,) = process_state.changed(before, process_state.state())
        assert said == "warnings that are errors"
    monkeypatch.setenv("OMP_SOMETHING", "1")
    (said,) = process_state.changed(before, process_state.state())
    assert "OMP_SOMETHING" in said


def test_an_input_with_gaps_keeps_its_values_where_they_are_judged():
    torch.manual_seed(0)
    gaps = torch.randn(6, 8)[:, ::2]
    step = Step(Workload(torch.nn.Linear(4, 4), (gaps,)), train=False)
    ring = Ring(step, [True], 3)
    ring.renew(1, (torch.ones(6, 4),), used=3)
    *others, last = inputs(ring)
    assert torch.equal(last, torch.ones(6, 4))
    assert last.stride() == gaps.stride()
    assert not any(torch.equal(x, last) for x in others)
