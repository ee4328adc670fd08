"""Whether CUDA graphs pay: a switch of a compiled graph that waits stands for a replay."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
import torch
from measurements import kept_keys

from backbay import compile_log
from backbay.timing import clock
from backbay_optimizer.cuda_graphs.capture import exclusive
from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.tuning import cache, graph_timing

GRAPH = torch.fx.symbolic_trace(lambda x: x + 1)
X = torch.ones(3)
RECORDED = SimpleNamespace(number=1)
"""What stands for a recording."""


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(graph_timing, "BUDGET_S", 0.05)
    compile_log.clear()


def deciding(replay_s=0.0, plain_s=0.0, recordings=None, settings="default"):
    """Return a graph that takes so long with and without replays, and what switches it."""
    recordings = recordings or Recordings(name="ours")
    seen = []

    def compiled(x):
        seen.append(x)
        if recordings.enabled and not recordings.stopped:
            recordings.held = RECORDED
        time.sleep(replay_s if recordings.enabled else plain_s)
        return (x + 1,)

    decision = graph_timing.GraphDecision(GRAPH, [X], settings, recordings)
    call = decision.found_by(compiled) if decision.known is None else compiled
    return call, recordings, seen, decision.known


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize(("replay_s", "plain_s", "used"), [(0, 0.004, True), (0.004, 0, False)])
def test_the_slower_way_is_kept_or_timed_again(replay_s, plain_s, used, tmp_path):
    call, recordings, seen, known = deciding(replay_s, plain_s)
    assert known is None
    call(X)
    assert len(seen) == 1  # libraries choose kernels in the first call: nothing is timed
    assert not recordings.enabled
    assert call(X)[0].tolist() == [2, 2, 2]
    assert sum(x is X for x in seen) == 2  # what the caller gets is computed once
    assert recordings.enabled is used
    assert recordings.held is (RECORDED if used else None)
    word = "used" if used else "not used"
    assert any(x.startswith(f"CUDA graphs {word}: a replay takes") for x in reasons()), reasons()
    before = len(seen)
    call(X)
    assert len(seen) == before + 1
    assert len(kept_keys(tmp_path, cache.Replays)) == 1

    *_, known = deciding(plain_s, replay_s)  # as another process: it is not timed
    assert known is used
    assert any(f"CUDA graphs {word}" in x and ", as found on 20" in x for x in reasons())


def test_a_device_that_never_waits_is_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "handed_over", lambda step, _: (0.04, 1.0, step()))
    call, recordings, seen, _ = deciding(plain_s=0.004)
    call(X)
    assert call(X)[0].tolist() == [2, 2, 2]
    assert len(seen) == 2
    assert not recordings.enabled
    assert any("the host takes 4% of a call's time" in x for x in reasons())
    assert deciding()[-1] is False


def test_code_that_can_not_be_recorded_is_timed():
    recordings = Recordings(name="ours")
    recordings.refuse("it waits for the device: item")
    call, _, seen, _ = deciding(recordings=recordings)
    call(X), call(X)
    assert len(seen) == 2
    assert deciding()[-1] is False
    assert any("it waits for the device: item, as found on 20" in x for x in reasons())


@pytest.mark.parametrize("writes", [False, True])
def test_parameters_are_copied_or_written(writes, monkeypatch):
    recordings, seen = Recordings(name="ours", writes=writes), []
    compared = graph_timing.variants.compared

    def faster(*args, **given):
        compared(*args, **given)
        return cache.PairTiming(ratio=0.5, interval=(0.4, 0.6), created="")

    monkeypatch.setattr(graph_timing.variants, "compared", faster)

    def compiled(weight, x):
        seen.append((weight, x))
        return (weight * x,)

    weight, x = torch.ones(3), torch.ones(3)
    weight._dynamo_static_input_type = "unguarded"  # what Dynamo says of a parameter
    decision = graph_timing.GraphDecision(GRAPH, [weight, x], "default", recordings)
    call = decision.found_by(compiled)
    call(weight, x)
    recordings.held = RECORDED
    call(weight, x)
    assert recordings.enabled
    assert (recordings.held is None) is writes  # else it reads copies
    copies = seen[2:]
    assert copies
    assert all((y is weight) is not writes for y, _ in copies)
    assert all(y is not x for _, y in copies)


@pytest.mark.parametrize(
    ("interval", "kept", "tries"),
    [
        ((0.6, 0.99), True, 1),
        ((0.96, 1.2), False, 1),
        ((1.1, 1.2), False, 1),
        ((0.6, 1.01), None, graph_timing.MOST_TRIES),
    ],
)
def test_a_busy_machine_is_believed_or_asked_without_end(
    interval, kept, tries, monkeypatch, tmp_path
):
    timed = []
    found = cache.PairTiming(ratio=0.8, interval=interval, created="")
    compared = lambda *_, **__: timed.append(1) or found  # noqa: E731
    monkeypatch.setattr(graph_timing.variants, "compared", compared)
    call, recordings, seen, _ = deciding()
    for _ in range(20):
        recordings.held = RECORDED
        call(X)
    assert len(timed) == tries
    assert len(seen) == 20
    assert recordings.enabled is bool(kept)
    assert deciding()[-1] is kept
    assert any("CUDA graphs not used yet" in x for x in reasons()) == (kept is None)


def test_other_settings_are_known(tmp_path):
    for settings in ("default", "max-autotune"):
        call, *_ = deciding(plain_s=0.004, settings=settings)
        call(X), call(X)
    assert len(kept_keys(tmp_path, cache.Replays)) == 2


def test_a_graph_of_which_nothing_was_replayed_is_known(tmp_path):
    recordings = Recordings(name="ours")
    decision = graph_timing.GraphDecision(GRAPH, [X], "default", recordings)
    call = decision.found_by(lambda x: (x,))  # the caller watches what is dispatched, say
    call(X), call(X)
    assert any("not used: nothing was replayed" in x for x in reasons())
    assert not kept_keys(tmp_path, cache.Replays)


def test_recordings_that_stop_while_they_are_timed_are_said_to_pay(tmp_path):
    recordings = Recordings(name="ours")
    call, *_ = deciding(plain_s=0.004, recordings=recordings)
    call(X)
    recordings.stop("too large")
    call(X)
    assert not recordings.enabled
    assert any("not used: nothing was replayed" in x for x in reasons())
    assert not kept_keys(tmp_path, cache.Replays)


@pytest.mark.parametrize("why", ["memory", "error"])
def test_what_can_not_be_timed_is_replayed_or_stops_the_model(why, tmp_path):
    recordings = Recordings(name="ours", writes=why == "memory")

    def compiled(*args):
        if why == "error" and recordings.enabled:
            raise RuntimeError("no kernel\nimage")
        return args

    decision = graph_timing.GraphDecision(GRAPH, [X, X], "default", recordings)
    call = decision.found_by(compiled)
    call(X, X.clone())
    assert len(call(X, X.view(-1) if why == "memory" else X.clone())) == 2
    assert not recordings.enabled
    said = {"memory": "two inputs share memory", "error": "RuntimeError: no kernel"}[why]
    assert any(x.startswith(f"CUDA graphs not used: not timed: {said}") for x in reasons())
    assert not kept_keys(tmp_path, cache.Replays)


def test_inputs_that_share_memory_and_are_only_read_are_not_timed():
    recordings = Recordings(name="ours")
    decision = graph_timing.GraphDecision(GRAPH, [X, X], "default", recordings)
    call = decision.found_by(lambda *args: args)
    call(X, X)
    recordings.held = RECORDED
    call(X, X)
    assert any("a replay takes" in x for x in reasons()), reasons()


def test_a_graph_that_writes_what_it_holds_is_called_for_a_trial(tmp_path):
    recordings, seen = Recordings(name="ours"), []
    holder = torch.nn.Module()
    holder.register_buffer("count", torch.zeros(3))
    graph = torch.fx.Graph()
    graph.output((graph.call_method("add_", (graph.get_attr("count"), graph.placeholder("x"))),))
    written = torch.fx.GraphModule(holder, graph)
    decision = graph_timing.GraphDecision(written, [X], "default", recordings)
    call = decision.found_by(lambda x: seen.append(x) or written(x))
    for _ in range(3):
        recordings.held = RECORDED
        call(X)
    assert len(seen) == 3
    assert holder.count.tolist() == [3, 3, 3]
    assert not recordings.enabled
    assert any("it writes tensors that are no inputs" in x for x in reasons()), reasons()
    assert not kept_keys(tmp_path, cache.Replays)


def test_two_threads_time_one_graph(monkeypatch):
    timed = []
    real = graph_timing.variants.compared
    monkeypatch.setattr(
        graph_timing.variants, "compared", lambda *a, **k: timed.append(1) or real(*a, **k)
    )
    call, *_ = deciding()
    call(X)
    threads = [threading.Thread(target=call, args=(X,)) for _ in range(2)]
    with call._lock:  # both find that a call is left
        for one in threads:
            one.start()
        time.sleep(0.1)
    for one in threads:
        one.join()
    assert len(timed) == 1


class Trains:
    """A graph that trains: it is slow unless it is replayed, and its backward says that it ran."""

    def __init__(self, recordings):
        self.recordings, self.seen = recordings, []
        recordings.trains = True

    def __call__(self, weight, x):
        self.seen.append((weight, x))
        if self.recordings.enabled:
            self.recordings.held = RECORDED
        else:
            time.sleep(0.004)
        return (weight * x,)


def trains():
    recordings = Recordings(name="ours")
    weight, compiled = torch.ones(3, requires_grad=True), Trains(recordings)
    weight._dynamo_static_input_type = "unguarded"  # what Dynamo says of a parameter
    decision = graph_timing.GraphDecision(GRAPH, [weight, X], "default", recordings)
    return decision.found_by(compiled), compiled, weight


def test_training_is_timed_before_its_backward_has_run():
    call, compiled, weight = trains()
    for _ in range(4):
        call(weight, X)
    assert len(compiled.seen) == 4
    compiled.recordings.ran_backward = True
    call(weight, X)
    assert len(compiled.seen) > 5
    assert compiled.recordings.enabled
    assert compiled.recordings.held is None  # it reads copies


def test_hooks_of_parameters_see_what_is_timed():
    call, compiled, weight = trains()
    seen = []
    weight.register_hook(seen.append)
    compiled.recordings.ran_backward = True
    call(weight, X)
    (result,) = call(weight, X)
    assert len(compiled.seen) > 4
    assert not seen
    assert weight.grad is None
    result.sum().backward()
    assert len(seen) == 1


def test_hooks_of_what_is_saved_see_what_is_timed():
    call, compiled, weight = trains()
    compiled.recordings.ran_backward = True
    call(weight, X)
    with torch.autograd.graph.save_on_cpu():
        call(weight, X)
    assert len(compiled.seen) == 2
    assert any("not timed: hooks of the caller's" in x for x in reasons())


def test_training_is_timed_in_a_backward():
    call, compiled, weight = trains()
    compiled.recordings.ran_backward = True
    call(weight, X)
    with torch.enable_grad():
        y = torch.ones(1, requires_grad=True) * 2
    y.register_hook(lambda _: call(weight, X) and None)
    y.backward()
    assert len(compiled.seen) == 2
    assert any("not timed: it is called in a backward" in x for x in reasons())


def test_a_backward_that_can_not_be_recorded_is_timed():
    call, compiled, weight = trains()
    call(weight, X)
    compiled.recordings.ran_backward = True
    compiled.recordings.refuse("backward graph has no CUDA graph: it waits for the device: item")
    call(weight, X)
    assert len(compiled.seen) == 2
    assert not compiled.recordings.enabled
    again = graph_timing.GraphDecision(GRAPH, [weight, X], "default", Recordings(name="ours"))
    assert again.known is False


def test_a_device_is_waited_for_while_somebody_records():
    call, recordings, seen, _ = deciding(0, 0.004)
    call(X)
    with ThreadPoolExecutor(1) as pool:
        with exclusive:  # as while something is captured
            waiting = pool.submit(call, X)
            assert not wait([waiting], timeout=0.1).done
            assert len(seen) == 1
        waiting.result()
    assert recordings.enabled
