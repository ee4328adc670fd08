"""When compiled code is replayed: with a device that a list of calls stands for."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from fake_device import CAPTURED
from torch.multiprocessing.reductions import StorageWeakRef

from backbay import compile_log
from backbay_optimizer.cuda_graphs import recordings, replayable, replaying
from backbay_optimizer.cuda_graphs.addresses import Addresses
from backbay_optimizer.cuda_graphs.buffers import ALIGNMENT
from backbay_optimizer.cuda_graphs.capture import launching, pool_bytes
from backbay_optimizer.cuda_graphs.recordings import (
    MOST_CAPTURES,
    MOST_SIZES,
    MOST_STALE,
    PAYS,
    Recordings,
    in_turn,
)
from backbay_optimizer.cuda_graphs.replayable import Inputs
from backbay_optimizer.cuda_graphs.replaying import Replayed


class Code:
    """Boxed code, which says how often it ran as it is."""

    def __init__(self, function):
        self.function, self.runs = function, 0

    def __call__(self, inputs):
        self.runs += 1
        results = self.function(*inputs)
        inputs.clear()
        return results


def replayed(function, *, shared=None, **known):
    code = Code(function)
    return Replayed(code, Inputs(device=0, **known), shared or Recordings(name="ours")), code


def reasons():
    return [x.why for x in compile_log.records()]


def test_the_second_call_is_not_recorded(device):
    weight = torch.randn(3)
    call, code = replayed(lambda w, x: [w * x, x], fixed=[0])
    for step in range(5):
        x = torch.randn(3)
        given = [weight, x]
        product, same = call(given)
        assert torch.equal(product, weight * x)
        assert same is x
        assert given == []
        assert [y.replays for y in device["graphs"]] == ([step] if step else [])
        weight.add_(1)  # in its place
    assert code.runs == 6  # the first, and what a fake graph calls


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stream": 7}, "another stream"),
        ({"capturing": True}, "the caller is capturing one"),
    ],
)
def test_somewhere_else_is_here(device, change, reason):
    call, _ = replayed(lambda x: [x + 1])
    for _ in range(3):
        call([torch.ones(2)])
    before, replays = dict(device), device["graphs"][0].replays
    device.update(change)
    assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert device["graphs"][0].replays == replays
    assert any(reason in x for x in reasons())
    device.update(before)
    call([torch.ones(2)])
    assert device["graphs"][0].replays == replays + 1


def test_nothing_is_recorded_after_many_threads_have_come_and_gone(device, monkeypatch):
    monkeypatch.setattr(replayable, "MOST_KEYS", 2)
    call, _ = replayed(lambda x: [x + 1])
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for thread in (one, other):
            thread.submit(call, [torch.ones(2)]).result()
    for _ in range(3):
        assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert [x.replays for x in device["graphs"]] == [2]


def test_who_watches_what_is_dispatched_sees_nothing(device):
    from torch.utils.flop_counter import FlopCounterMode

    call, _ = replayed(lambda x: [x @ x])
    for _ in range(3):
        call([torch.ones(2, 2)])
    with FlopCounterMode(display=False) as counted:
        call([torch.ones(2, 2)])
    assert counted.get_total_flops() == 16


@pytest.mark.usefixtures("device")
def test_settings_of_cudnn_are_not_seen():
    call, code = replayed(lambda x: [x + 1])
    for _ in range(3):
        call([torch.ones(2)])
    before = code.runs
    with torch.backends.cudnn.flags(benchmark=True):
        call([torch.ones(2)])
    assert any("settings of cuDNN" in x for x in reasons())
    assert code.runs == before + 1


@pytest.mark.usefixtures("device")
def test_sums_in_half_precision_are_recorded_in_single():
    call, code = replayed(lambda x: [x + 1])
    for _ in range(3):
        call([torch.ones(2)])
    before = code.runs
    torch.backends.cuda.matmul.allow_fp16_accumulation = True  # Dynamo has no guard for it
    try:
        call([torch.ones(2)])
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
    assert any("or cuBLAS are others" in x for x in reasons())
    assert code.runs == before + 1


def test_sizes_are_recorded_without_end(device):
    call, _ = replayed(lambda n, x: [x[:n] * 2])
    for _ in range(3):
        for size in range(1, 20):
            x = torch.randn(size)
            assert torch.equal(call([size, x])[0], x * 2)
    assert len(device["graphs"]) == MOST_SIZES
    assert any("it is recorded for 8 sizes" in x for x in reasons())


def test_another_layout_is_copied_into_the_buffer_of_the_first(device):
    call, _ = replayed(lambda x: [x * 2])
    one, other = torch.randn(1, 3), torch.randn(2, 3)
    for x in (one, one, one, other, other, one):
        assert torch.equal(call([x])[0], x * 2)
    assert [x.replays for x in device["graphs"]] == [3, 2]


def test_an_input_of_an_unknown_kind_is_copied(monkeypatch):
    assert replayable.unusual([torch.ones(2), 3], -1) == "an input is on another device"
    assert replayable.unusual([3], 0) is None
    assert replayable.unusual([3, None], 0) == "an input is a NoneType"
    meta = torch.ones(2, device="meta")
    assert replayable.unusual([meta], 0) == "an input is on another device"


def products(call, weights):
    for weight in weights:
        x = torch.randn(3)
        assert torch.equal(call([weight, x])[0], weight * x)


def test_some_of_many_layers_run_as_they_are(device):
    call, _ = replayed(lambda w, x: [w * x], fixed=[0])
    weights = [torch.randn(3) for _ in range(12)]
    for _ in range(3):
        products(call, weights)
    # The first call of all ran as it was, and so the first layer was recorded in its second.
    assert [x.replays for x in device["graphs"]] == [3] * 11 + [2]


def test_layers_are_asked_in_another_turn_than_they_are_called():
    known, asked = deque(range(6)), []

    def fits_for(n):
        return lambda one: asked.append(one) or one == n

    for _ in range(2):
        assert [in_turn(known, fits_for(n)) for n in range(6)] == [*range(6)]
        found = [in_turn(known, fits_for(n), backwards=True) for n in range(6)[::-1]]
        assert found == [*range(6)[::-1]]
    assert len(asked) == 24
    for n in range(6)[::-1]:  # each is computed anew before its backward, as by a checkpoint
        assert in_turn(known, fits_for(n)) == n
        assert in_turn(known, fits_for(n), backwards=True) == n
    assert len(asked) == 24 + 3 * 6  # it is the second to be asked, and for its backward the first
    before = list(known)
    for backwards in (False, True):
        assert in_turn(known, lambda _: False, backwards=backwards) is None
        assert list(known) == before


def test_replays_pay_for_no_more_recordings(device):
    call, _ = replayed(lambda w, x: [w * x], fixed=[0])
    weights = [torch.randn(3) for _ in range(MOST_CAPTURES + 16)]
    products(call, weights)
    assert len(device["graphs"]) == MOST_CAPTURES
    assert any("it is recorded again and again" in x for x in reasons())
    for _ in range(12):
        products(call, weights)
    assert len(device["graphs"]) == len(weights)


def test_parameters_that_stay_nowhere_are_recorded_without_end(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    weight, held = torch.randn(3), []
    for _ in range(3 * MOST_CAPTURES):
        products(call, [weight])
        weight = weight.clone()
        held.append(torch.empty(3))  # where it was
        assert shared.held.number <= MOST_STALE
    assert len(device["graphs"]) == MOST_CAPTURES
    assert any("it is recorded again and again" in x for x in reasons())


def test_replays_of_long_ago_pay_for_recordings_without_end(device):
    call, _ = replayed(lambda w, x: [w * x], fixed=[0])
    weight, held = torch.randn(3), []
    products(call, [weight] * (40 * PAYS))
    for _ in range(2 * MOST_CAPTURES):
        weight = weight.clone()
        held.append(torch.empty(3))  # where it was
        products(call, [weight])
    assert len(device["graphs"]) == 1 + MOST_CAPTURES


def test_memory_that_is_freed_between_calls_is_taken_for_nobodys_or_is_elsewhere_and_fits():
    weight, other = torch.randn(1000), torch.randn(3)
    addresses = Addresses([other, weight, 3], [0, 1])
    memory = weight.untyped_storage()
    size, begin = memory.nbytes(), memory.data_ptr()
    assert not addresses.are_stale()
    memory.resize_(0)  # as FSDP does
    assert not addresses.are_stale()
    held = [torch.empty(1000) for _ in range(100)]
    memory.resize_(size)
    assert memory.data_ptr() != begin
    assert addresses.are_stale()
    del held
    addresses = Addresses([other, weight, 3], [0, 1])
    assert not addresses.are_stale()
    del weight, memory
    assert addresses.are_stale()


def test_layers_that_are_loaded_again_are_recorded_no_more(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    for _ in range(12):
        weights = [torch.randn(3) for _ in range(12)]
        for _ in range(20):
            products(call, weights)
        assert shared.held.number == 12
        assert all(x.replays > 10 for x in device["graphs"][-12:])
        held = [torch.empty(3) for _ in range(100)]  # so that no address comes back
        weights.clear()
        del held


def test_a_recording_that_is_stale_keeps_its_parameters_or_is_dropped_at_once(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    first, second = torch.randn(3), torch.randn(3)
    products(call, [first, first])
    storage = StorageWeakRef(first.untyped_storage())
    del first
    assert storage.expired()
    products(call, [second, second])
    assert shared.held.number == 2  # it may come back
    assert [x.replays for x in device["graphs"]] == [1, 2]


@pytest.mark.usefixtures("device")
def test_a_parameter_without_elements_is_taken_for_freed():
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, e, x: [w * x, e + 1], fixed=[0, 1], shared=shared)
    weight, empty = torch.randn(3), torch.empty(0)
    for _ in range(2):
        call([weight, empty, torch.randn(3)])
    del empty
    Recordings.release_stale()
    assert shared.held.number == 1


def test_a_pool_is_used_again_when_all_that_was_recorded_in_it_is_gone(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    weights = [torch.randn(3) for _ in range(MOST_STALE + 1)]
    products(call, weights)
    first = shared.held.pool
    del weights
    weight = torch.randn(3)
    products(call, [weight])  # all are dropped
    assert shared.held.pool is first
    products(call, [weight] * 2)
    assert shared.held.pool is not first
    assert shared.held.pool.handle != first.handle
    assert device["graphs"][-1].replays == 2


@pytest.mark.usefixtures("device")
def test_what_another_thread_dropped_meanwhile_leaves_its_pool():
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    weight = torch.randn(3)
    products(call, [weight] * 2)
    held = shared.held  # which a call has asked for, and not locked yet
    del weight
    Recordings.release_stale()
    assert held.pool.is_drained
    assert call._recording([torch.randn(3), torch.randn(3)], held) == replaying.STALE


@pytest.mark.usefixtures("device")
def test_buffers_of_inputs_are_no_memory():
    before = pool_bytes(0)
    call, _ = replayed(lambda x, y: [x + y.sum()])
    for _ in range(2):
        table = torch.randn(100, 8)
        call([table[:, 1], torch.randn(1000)])
    views = 4 * (99 * 8 + 1)  # from the column's first element to its last
    aligned = -views % ALIGNMENT
    assert 0 <= pool_bytes(0) - before - CAPTURED - views - 4000 <= aligned + ALIGNMENT


@pytest.mark.usefixtures("device")
def test_what_is_recorded_is_dropped_for_a_call_that_is_not(monkeypatch):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    weights = [torch.randn(3) for _ in range(MOST_STALE + 1)]
    products(call, weights)
    weights.clear()
    monkeypatch.setattr(replaying, "unusual", lambda *_: "an input is strange")
    products(call, [torch.randn(3)])
    assert shared.held.number == MOST_STALE


def test_memory_of_parameters_that_are_no_more_is_kept(device):
    shared, other = Recordings(name="ours"), Recordings(name="ours")
    call, _ = replayed(lambda w, x: [w * x], fixed=[0], shared=shared)
    another, _ = replayed(lambda x: [x + 1], shared=other)
    weight = torch.randn(3)
    products(call, [weight] * 2)
    for _ in range(2):
        another([torch.ones(3)])
    assert shared.held.pool is other.held.pool
    del weight
    with shared.held.lock:  # it is replayed
        Recordings.release_stale()
    assert shared.held.number == 1
    Recordings.release_stale()
    assert shared.held is None
    another([torch.ones(3)])
    assert [x.replays for x in device["graphs"]] == [1, 2]


@pytest.mark.usefixtures("device")
def test_a_graph_that_is_compiled_meanwhile_ends_a_release():
    known, ends = deque(maxlen=1000), threading.Event()  # a release looks at all that are alive

    def compiling():
        while not ends.is_set():
            known.append(Recordings(name="ours"))

    thread = threading.Thread(target=compiling)
    thread.start()
    try:
        for _ in range(3000):
            Recordings.release_stale()
    finally:
        ends.set()
        thread.join()
    assert known  # nothing was raised while these came


def test_what_can_not_be_recorded_is_tried_again(device):
    call, code = replayed(lambda x: [x.sin().expand(2, 3)])
    for step in range(4):
        assert call([torch.ones(3)])[0].shape == (2, 3), step
    assert len(device["graphs"]) == 1
    assert code.runs == 5
    assert sum("could not be recorded" in x for x in reasons()) == 1


def test_memory_without_end(device):
    device["bytes"] = 1 << 40
    call, _ = replayed(lambda x: [x + 1])
    for _ in range(4):
        assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert not any(x.replays for x in device["graphs"])
    assert any("recordings would hold" in x for x in reasons())


def test_what_is_forgotten_is_replayed(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda x: [x + 1], shared=shared)
    for _ in range(3):
        call([torch.ones(2)])
    shared.forget()
    for _ in range(2):
        assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert [x.replays for x in device["graphs"]] == [2, 2]


def test_what_is_forgotten_by_another_thread_meanwhile_is_found_again(device, monkeypatch):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda x: [x + 1], shared=shared)
    call([torch.ones(2)])
    monkeypatch.setattr(recordings, "pool_bytes", lambda _: shared.forget() or 0)
    call([torch.ones(2)])  # recorded while the other one forgets
    assert shared.held is None
    device["stream"] = 7
    assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert [x.replays for x in device["graphs"]] == [1, 1]  # none of the other stream's


def test_what_is_switched_off_is_replayed(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda x: [x + 1], shared=shared)
    for enabled in (True, True, True, False, True):
        shared.enabled = enabled
        call([torch.ones(2)])
    assert [x.replays for x in device["graphs"]] == [3]


def test_what_is_stopped_goes_on_when_switched_on(device):
    shared = Recordings(name="ours")
    call, _ = replayed(lambda x: [x + 1], shared=shared)
    for _ in range(3):
        call([torch.ones(2)])
    shared.stop("enough")
    shared.enabled = True
    assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert [x.replays for x in device["graphs"]] == [2]
    assert shared.held is None


def test_two_codes_of_one_graph_replay_each_other(device):
    shared = Recordings(name="ours")
    one, _ = replayed(lambda x: [x + 1], shared=shared)
    other, _ = replayed(lambda x: [x * 5], shared=shared)
    for _ in range(4):
        assert one([torch.ones(2)])[0].tolist() == [2, 2]
        assert other([torch.ones(2)])[0].tolist() == [5, 5]
    assert [x.replays for x in device["graphs"]] == [3, 3]


def test_two_threads_replay_at_once(device):
    call, _ = replayed(lambda x: [x + 1])
    for _ in range(3):
        call([torch.ones(2)])
    with call._shared.held.pool.lock:
        assert call([torch.ones(2)])[0].tolist() == [2, 2]
    assert device["graphs"][0].replays == 2
    assert any("another thread was replaying" in x for x in reasons())


def test_another_thread_records_at_once(device):
    call, _ = replayed(lambda x: [x + 1])
    call([torch.ones(2)])
    thread = threading.Thread(target=call, args=([torch.ones(2)],))
    thread.start()
    thread.join()
    assert not device["graphs"]  # libraries choose kernels in the first call of each thread
    call([torch.ones(2)])
    assert len(device["graphs"]) == 1


def test_a_replay_disturbs_who_records(device):
    call, _ = replayed(lambda x: [x + 1])
    for _ in range(2):
        call([torch.ones(2)])
    with ThreadPoolExecutor(1) as pool:
        with launching:  # as while something is captured
            waiting = pool.submit(call, [torch.ones(2)])
            assert not wait([waiting], timeout=0.1).done
        assert waiting.result()[0].tolist() == [2, 2]


def test_the_stream_of_a_first_call_is_the_only_one_for_ever(device):
    call, _ = replayed(lambda x: [x + 1])
    device["stream"] = 7
    call([torch.ones(2)])
    device["stream"] = 0
    for _ in range(3):
        call([torch.ones(2)])
    assert device["graphs"][0].replays == 3
    assert not any("another stream" in x for x in reasons())
