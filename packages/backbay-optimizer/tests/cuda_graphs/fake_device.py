"""The CPU in a CUDA device's place: a graph runs its code again, on the same memory."""

import ctypes
import itertools

import torch

from backbay_optimizer.cuda_graphs import recording, recordings, replaying, training

CAPTURED = 1 << 20
"""Bytes that each capture takes, as the allocator tells."""
WHOLE = 1 << 30
"""Bytes of the device."""


def at_the_same_address(value):
    """Return a tensor of the same memory, which does not keep it: as a CUDA graph has it."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.untyped_storage().nbytes():
        return torch.empty_like(value)
    alias = torch.empty(0, dtype=value.dtype)
    memory = bytes_of(value).untyped_storage()
    return alias.set_(memory, value.storage_offset(), value.shape, value.stride())


def bytes_of(value):
    """Return the memory of a tensor, which this does not keep either."""
    storage = value.untyped_storage()
    return torch.frombuffer(
        (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8
    )


class FakeGraph:
    """Runs the code again, on the same memory."""

    def __init__(self, code, given):
        self._code, self._given = code, [at_the_same_address(x) for x in given]
        before = [(x, x.clone()) for x in self._memory(self._given)]
        with torch.random.fork_rng([]):
            self.captured = code(list(given))
        self._results = [at_the_same_address(x) for x in self.captured]
        for memory, values in before:  # nothing is computed
            memory.copy_(values)
        self.replays = 0

    @staticmethod
    def _memory(values):
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        return [bytes_of(x) for x in tensors if x.untyped_storage().nbytes()]

    def replay(self):
        self.replays += 1
        made = self._code(list(self._given))
        for old, new in zip(self._memory(self._results), self._memory(made), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


def same_addresses(tensors, addresses, indices):
    return all(tensors[i].data_ptr() == addresses[i] for i in indices)


def install(monkeypatch):
    """Put it in a device's place, and return what tells how often something was recorded."""
    graphs, state = [], {"stream": 0, "capturing": False}
    segments, numbers = [], itertools.count(1)

    def captured(pool, run):
        # The recording's closure has what it is called with.
        code, boxed = (x.cell_contents for x in run.__closure__)
        code, boxed = (code, boxed) if callable(code) else (boxed, code)
        graphs.append(FakeGraph(code, boxed))
        boxed.clear()
        segments.append({"segment_pool_id": pool.handle, "total_size": CAPTURED})
        pool.measure()
        results, graphs[-1].captured = graphs[-1].captured, None
        return graphs[-1], results

    addresses = "_tensors_data_ptrs_at_indices_equal"  # of torch's builds for CUDA
    monkeypatch.setattr(torch._C, addresses, same_addresses, raising=False)
    monkeypatch.setattr(recording, "captured", captured)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(numbers)))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(recordings, "pool_bytes", lambda _: state.get("bytes", 0))
    for module in (replaying, training):
        monkeypatch.setattr(module, "current_stream", lambda _: state["stream"])
        monkeypatch.setattr(module, "unusual", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["capturing"])
    properties = type("Properties", (), {"total_memory": WHOLE})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    state["graphs"] = graphs
    return state
