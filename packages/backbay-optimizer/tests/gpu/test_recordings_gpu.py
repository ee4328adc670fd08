"""What recordings of CUDA graphs leave behind, hold and cost."""

import gc
import re
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from graph_cases import default, net, ours, rows, same  # noqa: E402
from torch import nn  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.cuda_graphs import capture, capture_stream  # noqa: E402

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


def called(call, model, *counts, trains):
    """Return the results of calls with so many rows, or the gradients of steps."""
    seen = []
    with torch.set_grad_enabled(trains):
        for seed, count in enumerate(counts):
            result = call(rows(count, seed))
            if trains:
                model.zero_grad()
                result.square().mean().backward()
            seen += [x.grad for x in model.parameters()] if trains else [result]
    return seen


def compiled(model, share):
    options = {"cuda_graphs": True, "cuda_graphs_memory": share}
    return torch.compile(model, backend=backbay, options=options, dynamic=True)


def private():
    """Return the bytes of each pool of recordings, as the allocator has them."""
    gc.collect()
    torch.cuda.empty_cache()
    found = Counter()
    for segment in torch.cuda.memory_snapshot():
        found[tuple(segment["segment_pool_id"])] += segment["total_size"]
    return {x: size for x, size in found.items() if x != (0, 0)}


@pytest.mark.parametrize("trains", [False, True])
def test_memory_is_not_bounded(trains, replays):
    def call_often(share):
        torch.compiler.reset()
        model = net()
        return called(compiled(model, share), model, *[16] * 4, trains=trains)

    wanted = call_often(0.5)
    assert replays
    replays.clear()
    same(call_often(1e-9), wanted)
    assert not replays
    assert any("recordings would hold" in x for x in reasons())


def test_a_pair_holds_other_memory_than_is_told_or_more_than_it_may(replays):
    def train(way, *counts):
        torch.compiler.reset()
        model = net()
        call = way(model)
        return call, called(call, model, *counts, trains=True)

    index = torch.cuda.current_device()
    stream = torch.cuda.current_stream(index).cuda_stream
    capture.captured(
        capture.Pool(index, stream), lambda: None
    )  # workspaces have a pool of their own
    before = private()
    call, _ = train(lambda x: compiled(x, 0.5), *[16] * 4, *[24] * 4)
    made = sorted(size for pool, size in private().items() if pool not in before)
    told = re.findall(r"their pool has (\d+) MiB", "\n".join(reasons()))
    assert len(told) == 2, reasons()
    assert made == sorted(int(x) << 20 for x in told)
    replays.clear()
    counts = [*[16] * 4, *[24] * 4, *[32] * 4]
    call, wanted = train(lambda x: default(x, dynamic=True), *counts)
    gc.collect()
    limit = capture.pool_bytes(index) + 3 * made[-1] // 2  # a pair, and half of one
    whole = torch.cuda.get_device_properties(index).total_memory
    call, got = train(lambda x: compiled(x, limit / whole), *counts)
    same(got, wanted)
    assert replays
    gc.collect()
    assert capture.pool_bytes(index) <= limit
    assert any(x.endswith("with another one") for x in reasons()), reasons()
    del call


@pytest.mark.parametrize("trains", [False, True])
def test_memory_is_not_given_back(trains):
    def used():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def of_recordings():
        index = torch.cuda.current_device()
        return capture.pool_bytes(index) - capture_stream.workspace_bytes(index)  # those stay

    def replay(count):
        torch.compiler.reset()  # or a model whose memory is where the last one's was is replayed
        model = net()
        called(ours(model), model, *[count] * 4, trains=trains)
        assert any("recorded as CUDA graph" in x for x in reasons()), reasons()
        assert any(x.startswith("backward graph recorded") for x in reasons()) == trains
        compile_log.clear()
        # The model is deleted here, but not its recordings: Dynamo keeps the code for others of
        # its class until it is reset.

    compile_log.clear()
    used()
    # Torch's metrics hold the frames of the last compilation, and so an earlier test's recordings.
    left = of_recordings()
    replay(16)
    before = used()
    for _ in range(3):
        replay(1 << 12)
    assert used() <= before
    assert of_recordings() <= left


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
