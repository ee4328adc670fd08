"""Counters become one where nothing else has their memory; let loose on the CPU here."""

import pytest
import torch
from torch import nn

from backbay.proof import Workload
from backbay_optimizer.passes.fused_counters import fused_counters


@pytest.fixture(autouse=True)
def anywhere(lift):
    lift(fused_counters, DEVICES=("cpu",))


@pytest.fixture
def counters():
    return [torch.tensor(x) for x in (3, 0, 41)]


def counting(x, first, second, third):
    first.add_(1)
    y = x.sin()
    second.add_(1)
    third.add_(1)
    return y


def test_counters_are_counted_by_one_operator(look, counters):
    seen = look(counting, torch.ones(2), *counters, passes=[fused_counters])
    assert seen.changes["fused_counters"] == 3
    assert [x.item() for x in counters] == [4, 1, 42]
    (graph_module,) = seen.graphs
    assert len(graph_module.graph.find_nodes(op="call_method", target="add_")) == 0
    found = graph_module.graph.find_nodes(op="call_function", target=torch._foreach_add_)
    assert len(found) == 1


@pytest.mark.parametrize("codegen", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_batch_norms_count_as_before(prove, codegen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    work = Workload(model=model, args=(torch.randn(8, 4),))
    assert prove(work, passes=[fused_counters], codegen=codegen)["fused_counters"] == 2


def test_a_proof_sees_what_is_counted(prove, monkeypatch):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4)).train()
    work = Workload(model=model, args=(torch.randn(8, 4),))
    plain = torch._foreach_add_
    monkeypatch.setattr(torch, "_foreach_add_", lambda these, step: plain(these, step + 1))
    with pytest.raises(AssertionError, match="num_batches_tracked"):
        prove(work, passes=[fused_counters])


def programs():
    def one(x, first, second, third):
        first.add_(1)
        return x.sin()

    def result_is_read(x, first, second, third):
        y = first.add_(1)
        second.add_(1)
        return x * y

    def read_elsewhere(x, first, second, third):
        first.add_(1)
        second.add_(1)
        return x * second

    def added_twice(x, first, second, third):
        first.add_(1)
        first.add_(1)
        second.add_(1)
        return x.sin()

    def other_steps(x, first, second, third):
        first.add_(1)
        second.add_(2)
        third.sub_(1)
        return x.sin()

    def scaled(x, first, second, third):
        first.add_(1, alpha=2)
        second.add_(1)
        return x.sin()

    def by_a_tensor(x, first, second, third):
        first.add_(third)
        second.add_(third)
        return x.sin()

    def of_the_graph(x, first, second, third):
        first.clone().add_(1)
        third.clone().add_(1)
        return x.sin()

    return [x for x in locals().values() if callable(x)]


@pytest.mark.parametrize("program", programs(), ids=lambda x: x.__name__)
def test_others_are_left(look, counters, program):
    expected = [x.clone() for x in counters]
    result = program(torch.ones(2), *expected)
    seen = look(program, torch.ones(2), *counters, passes=[fused_counters])
    assert not seen.changes["fused_counters"]
    assert torch.equal(seen.result, result)
    assert counters == expected


def test_counters_that_share_memory_are_left(look):
    memory = torch.zeros(3, dtype=torch.int64)
    seen = look(counting, torch.ones(2), *memory.unbind(), passes=[fused_counters])
    assert not seen.changes["fused_counters"]
    assert memory.tolist() == [1, 1, 1]


def test_a_counter_in_memory_that_is_read_is_left(look):
    memory = torch.zeros(3, dtype=torch.int64)

    def program(whole, first, second):
        first.add_(1)
        y = whole * 2
        second.add_(1)
        return y

    seen = look(program, memory, memory[0], torch.tensor(5), passes=[fused_counters])
    assert not seen.changes["fused_counters"]
    assert seen.result.tolist() == [2, 0, 0]


@pytest.mark.parametrize("make", [lambda: torch.ones(()), lambda: torch.zeros(2).long()])
def test_what_is_no_single_integer_is_left(look, make):
    seen = look(counting, torch.ones(2), *(make() for _ in range(3)), passes=[fused_counters])
    assert not seen.changes["fused_counters"]


def test_each_dtype_has_its_own(look):
    counters = [torch.tensor(0, dtype=x) for x in (torch.int64, torch.int32, torch.int32)]
    seen = look(counting, torch.ones(2), *counters, passes=[fused_counters])
    assert seen.changes["fused_counters"] == 2
    assert [x.item() for x in counters] == [1, 1, 1]


def test_a_cpu_is_left_alone(look, lift, counters):
    lift(fused_counters, DEVICES=("cuda",))
    seen = look(counting, torch.ones(2), *counters, passes=[fused_counters])
    assert not seen.changes["fused_counters"]
    assert "it runs on cpu: a CPU adds a number in no time" in seen.near
