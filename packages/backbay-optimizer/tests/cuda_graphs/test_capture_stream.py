"""Which stream is captured in, where workspaces come and go; without a device."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from backbay_optimizer.cuda_graphs import capture_stream

SIZE = 1 << 25


class Workspaces:
    """Stand for torch's table of them, and for the pool that they are made in."""

    def __init__(self):
        self.used = 0
        self.rounds = 0
        self.releases_while_made = 0
        """How often somebody releases them before they are looked at."""

    def make(self):
        self.rounds += 1
        self.used = SIZE
        if self.releases_while_made:
            self.releases_while_made -= 1
            self.used = 0

    def snapshot(self, pool, *, include_traces):
        assert pool == (0, 7)
        assert not include_traces
        return [{"total_size": SIZE, "allocated_size": self.used}]


@pytest.fixture
def workspaces(monkeypatch):
    made, handles = Workspaces(), iter(range(100, 200))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("stream", "use_mem_pool"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: SimpleNamespace(id=(0, 7)))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *given: given)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", made.snapshot)
    monkeypatch.setattr(capture_stream.CaptureStream, "_make_workspaces", lambda _: made.make())
    monkeypatch.setattr(capture_stream, "_made", lambda: next(handles))
    monkeypatch.setattr(capture_stream, "_by_stream", {})
    monkeypatch.setattr(capture_stream, "_all", [])
    monkeypatch.delenv("DISABLE_ADDMM_CUDA_LT", raising=False)
    return made


def test_a_stream_is_not_kept_or_shared(workspaces):
    one = capture_stream.capture_stream(0, 5)
    with one.holding_workspaces():
        pass
    assert capture_stream.capture_stream(0, 5) is one
    others = [capture_stream.capture_stream(*x) for x in ((0, 6), (1, 5))]
    assert len({x.stream for x in (one, *others)}) == 3
    assert workspaces.rounds == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_is_kept_whose_workspaces_were_released(workspaces, fails):
    one = capture_stream.capture_stream(0, 5)
    with contextlib.suppress(ArithmeticError), one.holding_workspaces():
        workspaces.used = 0
        if fails:
            raise ArithmeticError
    assert capture_stream.capture_stream(0, 5) is not one
    assert capture_stream.workspace_bytes(0) == SIZE  # graphs may use them still


def test_workspaces_that_were_released_while_they_were_made_stay_so(workspaces):
    one = capture_stream.capture_stream(0, 5)
    workspaces.releases_while_made = 1
    with one.holding_workspaces():
        assert workspaces.used == SIZE
    assert workspaces.rounds == 3
    assert capture_stream.capture_stream(0, 5) is one


def test_a_stream_of_a_torch_that_keeps_no_workspaces_is_not_kept(workspaces, monkeypatch):
    monkeypatch.setattr(workspaces, "make", lambda: None)
    one = capture_stream.capture_stream(0, 5)
    with one.holding_workspaces():
        pass
    assert capture_stream.capture_stream(0, 5) is one


def test_a_stream_is_kept_whose_workspaces_never_settle(workspaces, monkeypatch):
    sizes = iter(range(1, 100))
    monkeypatch.setattr(workspaces, "make", lambda: setattr(workspaces, "used", next(sizes)))
    one = capture_stream.capture_stream(0, 5)
    with one.holding_workspaces():
        pass
    assert capture_stream.capture_stream(0, 5) is not one


def test_a_workspace_that_cannot_be_made_is_made_by_a_graph(workspaces, monkeypatch):
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    with (
        pytest.raises(RuntimeError, match="DISABLE_ADDMM_CUDA_LT"),
        capture_stream.capture_stream(0, 5).holding_workspaces(),
    ):
        pytest.fail("it went on")


def test_bytes_of_another_device_are_told(workspaces):
    for index in (0, 0, 1):
        with capture_stream.capture_stream(index, len(capture_stream._all)).holding_workspaces():
            pass
    assert [capture_stream.workspace_bytes(x) for x in (0, 1, 2)] == [2 * SIZE, SIZE, 0]
