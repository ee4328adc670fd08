"""When a forward and its backward are replayed: with a device that is made up.

The code is that of AOTAutograd's graphs, as they are; what autograd does with it is real.
"""

import gc

import pytest
import torch
from aot_graphs import Way
from fake_device import CAPTURED, WHOLE
from torch.utils.checkpoint import checkpoint
from training_cases import CASES, DEVICE, LAYERS, assert_alike, gradients, net, rows

from backbay import compile_log
from backbay_optimizer.cuda_graphs.capture import pool_bytes
from backbay_optimizer.cuda_graphs.recording import Recording
from backbay_optimizer.cuda_graphs.recordings import MOST_CAPTURES, MOST_SIZES, Recordings
from backbay_optimizer.cuda_graphs.replayable import Inputs
from backbay_optimizer.cuda_graphs.training import Backward, Forward

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the CPU stands for a device")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def seen(case, way):
    torch.compiler.reset()
    torch.manual_seed(3)
    return case(way)


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_told_from_code_that_runs_as_it_is(name, device):
    wanted = seen(CASES[name], Way(replays=False))
    assert_alike(seen(CASES[name], Way(replays=True)), wanted, rtol=1e-5, atol=1e-6)
    assert any(x.replays for x in device["graphs"]), reasons()
    assert any(x.startswith("backward graph recorded") for x in reasons()), reasons()
    assert not any("could not be recorded" in x for x in reasons()), reasons()


def test_a_view_that_is_saved_leaves_its_forward_pending(device):
    model = net()

    def function(x):
        both = torch.stack([x, model(x)], dim=1)
        return torch.bmm(both, both.transpose(1, 2))  # the transposed ones are saved, too

    trained(Way(replays=True), function, steps=6, learns=model)
    assert not any("pending" in x for x in reasons()), reasons()
    assert all(x.replays > 2 for x in device["graphs"])


def test_a_backward_is_recorded_with_another_forward(device):
    way, model = Way(replays=True), net()
    call, _ = trained(way, model, steps=2)
    first = model.up.weight.data
    call(rows())  # is recorded, and has no backward
    model.up.weight.data = first.clone()
    for _ in range(3):
        call(rows()).square().mean().backward()
    model.up.weight.data = first
    for _ in range(3):
        call(rows()).square().mean().backward()
    (held,) = (x.held for x in way.shared)
    assert [x.backward is not None for x in held.all] == [True, True]
    for pair in held.all:
        kept = pair.forward.kept
        assert kept
        assert kept <= pair.backward.addresses.all


def trained(way, function, *, steps=1, learns=None, **given):
    """Return a compiled function, and its model's gradients after so many steps.

    Args:
        way: how it is compiled.
        function: what is.
        steps: how many.
        learns: its model. Default: it is one.
        **given: how its rows differ from the usual ones.
    """
    call, model = way(function), learns or function
    for step in range(steps):
        model.zero_grad()
        call(rows(seed=step, **given)).square().mean().backward()
    return call, gradients(model)


def test_a_pair_that_is_too_large_is_kept_or_ends_the_others(device):
    way, model = Way(replays=True), net()
    call, _ = trained(way, model, steps=4)
    graphs = device["graphs"]
    before = [x.replays for x in graphs]
    model.up.weight.data = model.up.weight.data.clone()  # another recording is wanted
    device["bytes"] = 1 << 40
    for _ in range(2):
        call(rows()).square().mean().backward()
    assert len(graphs) == len(before) + 1
    assert graphs[-1].replays == 0
    assert any("recordings would hold 1048576 MiB with another one" in x for x in reasons())
    assert not way.shared[0].stopped


def test_a_backward_that_is_too_large_leaves_its_forward(device, monkeypatch):
    way, model = Way(replays=True), net()

    def bytes_of_all(_):
        return 1 << 40 if len(device["graphs"]) == 2 else 0

    monkeypatch.setattr("backbay_optimizer.cuda_graphs.recordings.pool_bytes", bytes_of_all)
    wanted = trained(Way(replays=False), net(), steps=6)[1]
    torch.compiler.reset()
    assert_alike(trained(way, model, steps=6)[1], wanted, rtol=1e-5, atol=1e-6)
    assert [x.replays for x in device["graphs"]] == [1, 0]
    assert not way.shared[0].held.number


def bytes_of_earlier_tests():
    gc.collect()
    Recordings.release_stale()
    return pool_bytes(0)


def short_of_memory(monkeypatch):
    """Return a way that may hold a pair and a forward, and how many bytes are held before."""
    monkeypatch.setattr("backbay_optimizer.cuda_graphs.recordings.pool_bytes", pool_bytes)
    before = bytes_of_earlier_tests()
    return Way(replays=True, share=(before + 3.5 * CAPTURED) / WHOLE), before


def move(model):
    for one in model.parameters():
        one.data = one.data.clone()


def captures_since(before):
    """Return of how many captures memory is held more than before, buffers of inputs aside."""
    return (pool_bytes(0) - before) // CAPTURED


def by_size(way, *counts):
    """Return the losses and gradients of steps with so many rows each."""
    model, seen = net(), []
    call = way(model, dynamic=True)
    for step, count in enumerate(counts):
        model.zero_grad()
        loss = call(rows(count, seed=step)).square().mean()
        loss.backward()
        seen += [loss.detach(), *gradients(model)]
    return seen


def test_sizes_of_a_step_are_recorded_without_end(device):
    sizes = [*range(3, 15)] * 3
    wanted = by_size(Way(replays=False), *sizes)
    torch.compiler.reset()
    assert_alike(by_size(Way(replays=True), *sizes), wanted, rtol=1e-5, atol=1e-6)
    graphs = device["graphs"]
    assert len(graphs) == 2 * MOST_SIZES
    assert [x.replays for x in graphs] == [2] * len(graphs)
    why = "forward graph ran without its CUDA graph: it is recorded for 8 sizes"
    assert why in reasons()


@pytest.mark.usefixtures("device")
def test_the_memory_of_a_pair_is_told_otherwise_than_it_is():
    by_size(Way(replays=True), 3, 3, 3, 5, 5)
    assert [x for x in reasons() if " MiB" in x] == [
        "forward graph recorded as CUDA graph 1; its pool has 1 MiB",
        "backward graph recorded with CUDA graph 1; their pool has 2 MiB",
        "forward graph recorded as CUDA graph 2; its pool has 1 MiB",
        "backward graph recorded with CUDA graph 2; their pool has 2 MiB",
    ]


def test_pairs_hold_more_memory_than_they_may(device, monkeypatch):
    sizes = (3, 3, 3, 5, 5, 7, 7, 3, 5, 7)
    wanted = by_size(Way(replays=False), *sizes)
    torch.compiler.reset()
    way, before = short_of_memory(monkeypatch)
    assert_alike(by_size(way, *sizes), wanted, rtol=1e-5, atol=1e-6)
    gc.collect()
    assert captures_since(before) == 2
    assert way.shared[-1].held.number == 1
    assert len(device["graphs"]) == 4  # none of the third size
    assert any(x.endswith("with another one") for x in reasons())


def test_memory_of_a_pair_that_is_stale_keeps_another_from_being_made(device, monkeypatch):
    (way, before), model = short_of_memory(monkeypatch), net()
    call, _ = trained(way, model, steps=4)
    move(model)
    for _ in range(4):
        call(rows()).square().mean().backward()
    assert way.shared[-1].held.number == 1
    assert captures_since(before) == 2
    assert [x.replays for x in device["graphs"]] == [2, 2, 4, 4]


def test_steps_that_move_parameters_are_recorded_without_end_where_memory_is_short(
    device, monkeypatch
):
    (way, before), model = short_of_memory(monkeypatch), net()
    call, held = way(model), []
    for step in range(2 * MOST_CAPTURES):
        call(rows(seed=step)).square().mean().backward()
        for one in model.parameters():
            one.data = one.data.clone()
            held.append(torch.empty_like(one))  # where it was
    assert MOST_CAPTURES < len(device["graphs"]) <= 2 * MOST_CAPTURES
    assert captures_since(before) <= 3


def test_a_parameter_that_is_replaced_before_the_backward_ends_it_where_memory_is_short(
    device, monkeypatch
):
    (way, _), model = short_of_memory(monkeypatch), net()
    call, _ = trained(way, model, steps=4)
    move(model)
    loss = call(rows()).square().mean()
    model.down.bias.data = model.down.bias.data.clone()  # it is not saved
    loss.backward()
    assert way.shared[0].held.number == 1
    assert [x.replays for x in device["graphs"]] == [2, 2, 1, 1]


def test_memory_of_a_model_that_is_no_more_keeps_another_from_being_recorded(device, monkeypatch):
    (way, _), model, other = short_of_memory(monkeypatch), net(), net()
    trained(way, model, steps=4)
    del model
    gc.collect()
    trained(way, lambda x: other(x) * 2, steps=6, learns=other)
    assert [x.held and x.held.number for x in way.shared] == [None, 1]
    assert all(x.replays > 1 for x in device["graphs"])


def test_only_some_layers_of_a_graph_are_replayed(device):
    way = Way(replays=True)
    seen(CASES["one_graph_of_many_layers"], way)
    (held,) = (x.held for x in way.shared if x.held is not None)
    assert held.number == LAYERS
    assert all(x.replays > 1 for x in device["graphs"])


@pytest.mark.usefixtures("device")
def test_a_layer_is_sought_among_others_that_share_its_graph(monkeypatch):
    own, fitted = Recording.fits, []

    def fits(recording, inputs):
        fitted.append(own(recording, inputs))
        return fitted[-1]

    monkeypatch.setattr(Recording, "fits", fits)
    seen(CASES["one_graph_of_many_layers"], Way(replays=True))
    assert not all(fitted)  # what is recorded first is sought
    assert all(fitted[-4 * LAYERS :])  # forward and backward of two steps


@pytest.mark.usefixtures("device")
def test_memory_of_a_model_that_is_no_more_is_kept_or_that_of_others_is_not():
    before = bytes_of_earlier_tests()
    way, model, other = Way(replays=True), net(), net()
    trained(way, model, steps=4)
    trained(way, lambda x: other(x) * 2, steps=4, learns=other)
    assert captures_since(before) == 4
    Recordings.release_stale()
    assert captures_since(before) == 4
    del model
    gc.collect()  # Dynamo still has the code
    with way.shared[0].held.lock:
        Recordings.release_stale()
    assert captures_since(before) == 4
    Recordings.release_stale()
    assert captures_since(before) == 2


@pytest.mark.usefixtures("device")
def test_memory_of_a_pair_is_not_given_back():
    before = bytes_of_earlier_tests()
    way = Way(replays=True)
    by_size(way, 3, 3, 3)
    assert captures_since(before) == 2
    way.shared.clear()
    torch.compiler.reset()  # Dynamo keeps the code of a deleted model, and so its recordings
    gc.collect()
    assert captures_since(before) == 0


@pytest.mark.parametrize("what", ["forget", "stop", "switch off"])
def test_what_is_released_while_it_is_pending_is_overwritten(what, device):
    way, model = Way(replays=True), net()
    call, _ = trained(way, model, steps=4)
    model.zero_grad()
    loss = call(rows(seed=9)).square().mean()
    (shared,) = way.shared
    if what == "forget":
        shared.forget()
    elif what == "stop":
        shared.stop("enough")
    else:
        shared.enabled = False
    before = [x.replays for x in device["graphs"]]
    call(rows(seed=10))
    loss.backward()
    assert [x.replays for x in device["graphs"]][: len(before)] == before
    torch.compiler.reset()
    other = net()
    wanted = Way(replays=False)(other)
    wanted(rows(seed=9)).square().mean().backward()
    assert_alike(gradients(model), gradients(other), rtol=1e-5, atol=1e-6)


def test_a_stream_of_before_anything_was_recorded_is_the_only_one(device):
    way, model = Way(replays=True), net()
    call, _ = trained(way, model)
    device["stream"] = 7
    for _ in range(4):
        call(rows()).square().mean().backward()
    assert any(x.replays for x in device["graphs"])
    assert not any("another stream" in x for x in reasons())


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"stream": 7}, "another stream"), ({"capturing": True}, "the caller is capturing one")],
)
def test_somewhere_else_is_here(change, reason, device):
    call, _ = trained(Way(replays=True), net(), steps=4)
    loss = call(rows()).square().mean()
    device.update(change)
    before = [x.replays for x in device["graphs"]]
    loss.backward()
    call(rows())
    assert [x.replays for x in device["graphs"]] == before
    for kind in ("forward", "backward"):
        assert f"{kind} graph ran without its CUDA graph: {reason}" in reasons()


def test_another_threads_replay_is_waited_for(device):
    way = Way(replays=True)
    call, _ = trained(way, net(), steps=4)
    before = [x.replays for x in device["graphs"]]
    with way.shared[0].held.lock:
        call(rows()).square().mean().backward()
    assert [x.replays for x in device["graphs"]] == before
    assert any("another thread was replaying" in x for x in reasons())


def test_a_forward_that_can_not_be_recorded_stops_the_step(device, monkeypatch):
    def fails(*_):
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr("backbay_optimizer.cuda_graphs.recording.captured", fails)
    way, model = Way(replays=True), net()
    found = trained(way, model, steps=4)[1]
    torch.compiler.reset()
    assert_alike(found, trained(Way(replays=False), net(), steps=4)[1], rtol=1e-5, atol=1e-6)
    assert way.shared[0].stopped
    assert any("the forward graph could not be recorded: RuntimeError: no" in x for x in reasons())


def test_hooks_that_might_read_it_in_another_stream_are_given_what_is_saved(device):
    call, _ = trained(Way(replays=True), net(), steps=4)
    before = [x.replays for x in device["graphs"]]
    with torch.autograd.graph.save_on_cpu():
        loss = call(rows()).square().mean()
    loss.backward()
    assert [x.replays for x in device["graphs"]] == before
    assert any("hooks of the caller's see what is saved" in x for x in reasons())
    result = checkpoint(call, rows(), use_reentrant=False)
    assert [x.replays for x in device["graphs"]] == [before[0] + 1, before[1]]
    result.square().mean().backward()
    assert [x.replays for x in device["graphs"]] == [before[0] + 2, before[1] + 1]


class Code:
    """Boxed code, written by hand: Inductor's may write a gradient over what was saved."""

    _boxed_call = True

    def __init__(self, function):
        self.function = function

    def __call__(self, inputs):
        given = list(inputs)
        inputs.clear()
        return self.function(*given)


def test_a_gradient_that_is_written_over_what_was_saved_is_the_callers(device):
    shared = Recordings(name="ours", trains=True, saved=1)
    forward_code = Code(lambda weight, x: [weight * x, torch.exp(x)])
    forward = Forward(forward_code, Inputs(device=0, fixed=[0]), shared)
    backward_code = Code(lambda saved, weight, given: [saved.mul_(given), given * weight])
    backward = Backward(backward_code, Inputs(device=0, fixed=[0, 1]), shared)
    weight, kept = torch.randn(3), []
    for step in range(6):
        x, given = torch.randn(3), torch.randn(3)
        result, saved = forward([weight, x])
        inputs = [saved, weight, given]
        del saved
        assert shared.ran_backward == (step > 0)
        first, second = backward(inputs)
        kept.append((result, first, second, x, given))
    for result, first, second, x, given in kept:
        assert torch.equal(result, weight * x)
        assert torch.equal(first, torch.exp(x) * given)
        assert torch.equal(second, given * weight)
    assert [x.replays for x in device["graphs"]] == [5, 5]
    (pair,) = shared.held.all
    assert weight.data_ptr() in pair.backward.addresses.all  # it is read where it is
    assert not pair.forward.pending
    results = forward([weight, torch.randn(3)])
    assert pair.forward.pending
    assert len(results) == 2


def test_a_backward_of_another_size_is_replayed(device):
    shared = Recordings(name="ours", trains=True, saved=1)
    forward = Forward(Code(lambda n, x: [x * n, n]), Inputs(device=0), shared)
    backward = Backward(Code(lambda n, given: [given * n]), Inputs(device=0), shared)
    for _ in range(4):
        for n in (2, 3):  # which nothing tells but the number
            x = torch.randn(3)
            result, saved = forward([n, x])
            assert torch.equal(result, x * n)
            assert torch.equal(backward([saved, x])[0], x * n)
    assert [x.replays for x in device["graphs"]] == [3, 3, 3, 3]
