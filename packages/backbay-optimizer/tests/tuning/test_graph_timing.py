"""Whether CUDA graphs pay: a switch of a compiled graph that waits stands for a replay."""

import threading
import time

import pytest
import torch
from measurements import kept_keys

from backbay import compile_log
from backbay_optimizer.cuda_graphs.replaying import Recordings
from backbay_optimizer.tuning import cache, graph_timing

GRAPH = torch.fx.symbolic_trace(lambda x: x + 1)
X = torch.ones(3)


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(graph_timing, "BUDGET_S", 0.05)
    compile_log.clear()


def decided(replay_s=0.0, plain_s=0.0, recordings=None, settings="default"):
    """Return a graph that takes so long with and without replays, and what switches it."""
    recordings = recordings or Recordings(name="ours")
    seen = []

    def compiled(x):
        seen.append(x)
        time.sleep(replay_s if recordings.enabled else plain_s)
        return (x + 1,)

    finish = graph_timing.decided(GRAPH, [X], settings, recordings)
    return finish(compiled), recordings, seen


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize(("replay_s", "plain_s", "used"), [(0, 0.004, True), (0.004, 0, False)])
def test_the_slower_way_is_kept_or_timed_again(replay_s, plain_s, used, tmp_path):
    call, recordings, seen = decided(replay_s, plain_s)
    call(X)
    assert len(seen) == 1  # libraries choose kernels in the first call: nothing is timed
    assert not recordings.enabled
    recordings.held = "what is recorded while it is timed, which reads copies"
    assert call(X)[0].tolist() == [2, 2, 2]
    assert recordings.enabled is used
    assert recordings.held is None
    word = "used" if used else "not used"
    assert any(f"CUDA graphs {word}, timed: " in x for x in reasons()), reasons()
    before = len(seen)
    call(X)
    assert len(seen) == before + 1
    assert len(kept_keys(tmp_path, cache.PairTiming)) == 1

    call, recordings, seen = decided(plain_s, replay_s)  # as another process: it is not timed
    call(X), call(X)
    assert recordings.enabled is used
    assert len(seen) == 2
    assert any(f"CUDA graphs {word}, timed on " in x for x in reasons()), reasons()


def test_other_settings_are_known(tmp_path):
    for settings in ("default", "max-autotune"):
        call, *_ = decided(plain_s=0.004, settings=settings)
        call(X), call(X)
    assert len(kept_keys(tmp_path, cache.PairTiming)) == 2


def test_recordings_that_stop_while_they_are_timed_are_said_to_pay(tmp_path):
    recordings = Recordings(name="ours")
    call, *_ = decided(plain_s=0.004, recordings=recordings)
    call(X)
    recordings.stop("too large")
    call(X)
    assert not recordings.enabled
    assert any("not timed: nothing was replayed" in x for x in reasons())
    assert not kept_keys(tmp_path, cache.PairTiming)


@pytest.mark.parametrize("why", ["memory", "error"])
def test_what_can_not_be_timed_is_replayed_or_stops_the_model(why, tmp_path):
    recordings = Recordings(name="ours")

    def compiled(*args):
        if why == "error" and recordings.enabled:
            raise RuntimeError("no kernel\nimage")
        return args

    call = graph_timing.decided(GRAPH, [X, X], "default", recordings)(compiled)
    call(X, X.clone())
    assert len(call(X, X.view(-1) if why == "memory" else X.clone())) == 2
    assert not recordings.enabled
    said = {"memory": "two inputs share memory", "error": "RuntimeError: no kernel"}[why]
    assert any(x.startswith(f"CUDA graphs not used: not timed: {said}") for x in reasons())
    assert not kept_keys(tmp_path, cache.PairTiming)


def test_two_threads_time_one_graph(monkeypatch):
    timed = []
    real = graph_timing.variants.compared
    monkeypatch.setattr(
        graph_timing.variants, "compared", lambda *given: timed.append(1) or real(*given)
    )
    call, *_ = decided()
    call(X)
    threads = [threading.Thread(target=call, args=(X,)) for _ in range(2)]
    with call._lock:  # both find that a call is left
        for one in threads:
            one.start()
        time.sleep(0.1)
    for one in threads:
        one.join()
    assert len(timed) == 1
