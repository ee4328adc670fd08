"""What recordings of CUDA graphs leave behind, hold and cost."""

import gc

import pytest

torch = pytest.importorskip("torch")

from graph_cases import net, ours, rows, same  # noqa: E402
from torch import nn  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.cuda_graphs import capture  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def reasons():
    return [x.why for x in compile_log.records()]


def test_a_capture_that_fails_leaves_something_behind():
    index, x = torch.cuda.current_device(), torch.ones(8, device="cuda")
    stream = torch.cuda.current_stream()

    def fails():
        torch.rand(8, device="cuda")
        return (x * 2).sum().item()

    for _ in range(3):
        with pytest.raises(Exception, match="captur"):
            capture.captured(capture.Pool(index, 0), fails)
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        torch.manual_seed(0)
        drawn = torch.rand(8, device="cuda")
        torch.manual_seed(0)
        assert torch.equal(torch.rand(8, device="cuda"), drawn)
        assert (x @ x).item() == 8.0
    graph, result = capture.captured(capture.Pool(index, 0), lambda: x * 3)
    graph.replay()
    assert result.tolist() == [3.0] * 8


@torch.no_grad()
def test_memory_is_not_bounded(replays):
    def call_often(share):
        options = {"cuda_graphs": True, "cuda_graphs_memory": share}
        call = torch.compile(net(), backend=backbay, options=options)
        return [call(rows(seed=x)) for x in range(4)]

    wanted = call_often(0.5)
    assert replays
    torch.compiler.reset()
    replays.clear()
    same(call_often(1e-9), wanted)
    assert not replays
    assert any("recordings would hold" in x for x in reasons())


@torch.no_grad()
def test_memory_is_not_given_back():
    def used():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def replay(count):
        torch.compiler.reset()  # or a model whose memory is where the last one's was is replayed
        call = ours(net())
        for step in range(4):
            call(rows(count, step))
        assert any("recorded as CUDA graph" in x for x in reasons()), reasons()
        compile_log.clear()

    compile_log.clear()
    used()
    # Torch's metrics hold the frames of the last compilation, and so an earlier test's recordings.
    left = capture.pool_bytes(torch.cuda.current_device())
    replay(16)
    before = used()
    for _ in range(3):
        replay(1 << 12)
    assert used() <= before
    assert capture.pool_bytes(torch.cuda.current_device()) <= left


@torch.no_grad()
def test_what_is_timed_is_not_kept(replays, monkeypatch):
    monkeypatch.setattr("backbay_optimizer.tuning.graph_timing.BUDGET_S", 0.2)

    def run(model):
        torch.compiler.reset()
        call = torch.compile(model, backend=backbay, options={"cuda_graphs": "auto"})
        return [call(rows(seed=x)) for x in range(5)]

    many = nn.Sequential(*(net() for _ in range(12)))  # many small kernels: it waits for the host
    first = run(many)
    assert any(x.startswith("CUDA graphs used: a replay") for x in reasons()), reasons()
    assert replays
    compile_log.clear()
    again = nn.Sequential(*(net() for _ in range(12)))
    same(run(again), first)
    assert any("CUDA graphs used" in x and ", as found on 20" in x for x in reasons()), reasons()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@torch.no_grad()
def test_the_second_device_is_not_the_first(replays):
    model = net().to("cuda:1")
    call = ours(model)
    for step in range(5):
        x = rows(seed=step).to("cuda:1")
        same(call(x), model(x))
    assert replays
