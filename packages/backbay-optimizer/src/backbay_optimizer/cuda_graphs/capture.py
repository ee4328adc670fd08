"""Capture work on a CUDA device, in memory of its own, and come back from a capture that fails."""

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from backbay_optimizer.cuda_graphs.capture_stream import capture_stream, workspace_bytes

exclusive = threading.RLock()
"""Held by captures, and by who waits for a device: that ends every capture on it."""
launching = threading.Lock()
"""Held by captures and replays: before 2.13 torch refuses random numbers to a replay during one."""
_known = threading.Lock()
"""Held while pools, or the recordings of one, are gone through or added to."""
_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_by_stream: "weakref.WeakValueDictionary[tuple[int, int], Pool]" = weakref.WeakValueDictionary()


class Holding(Protocol):
    """What holds memory beside a pool's."""

    @property
    def bytes(self) -> int:
        """How much."""


class Pool:
    """Memory that recordings share because only one of them is replayed at a time.

    They are replayed in one stream, and whoever replays holds the lock: what a recording writes is
    copied out before the next one may write there. A forward and its backward have one of their
    own, in which the forward keeps what it saves.
    """

    def __init__(self, index: int, stream: int) -> None:
        """Make one; it takes memory when something is captured.

        Args:
            index: of the device.
            stream: the stream that its recordings are replayed in, as CUDA's own handle.
        """
        self.index = index
        self.stream = stream
        self.lock = threading.Lock()
        self.bytes = 0
        """What it holds of the device's memory, after the last capture."""
        self.handle = torch.cuda.graph_pool_handle()
        self.is_used = False
        """Whether anything was ever captured in it."""
        self._recordings: weakref.WeakSet[Holding] = weakref.WeakSet()
        with _known:
            _pools.add(self)

    @property
    def is_drained(self) -> bool:
        """Whether all that was captured in it is gone: torch captures nothing into it any more."""
        return self.is_used and not self._recordings

    def add(self, recording: "Holding") -> None:
        """Know of a recording that is captured in it."""
        with _known:
            self._recordings.add(recording)

    @property
    def whole_bytes(self) -> int:
        """What it and its recordings hold, which is not to be asked for without `_known`."""
        return self.bytes + sum(x.bytes for x in self._recordings)

    def measure(self) -> None:
        """Ask the allocator for what the pool holds."""
        segments: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call] # torch has no stub
        mine = [x for x in segments if tuple(x["segment_pool_id"]) == tuple(self.handle)]
        self.bytes = sum(x["total_size"] for x in mine)
        self.is_used = True


def pool_of(index: int, stream: int) -> Pool:
    """Return the pool of all recordings in a stream: they keep nothing between calls."""
    pool = _by_stream.get((index, stream))
    if pool is None or pool.is_drained:
        pool = _by_stream[index, stream] = Pool(index, stream)
    return pool


def pool_bytes(index: int) -> int:
    """Return the memory of a device that pools, recordings and workspaces hold together."""
    with _known:
        pools = sum(x.whole_bytes for x in _pools if x.index == index)
    return pools + workspace_bytes(index)


def captured(pool: Pool, run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture what a function does in the current stream's place; nothing of it is computed.

    Args:
        pool: has the memory of what the function allocates.
        run: has been called before, in this thread.

    Returns:
        The graph, and what the function returned: tensors of the pool.

    Raises:
        Exception: what the function raised, or CUDA, where the work can't be captured. The thread,
            its random numbers and the allocator are then as they were.
    """
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(pool.index)
    with exclusive, launching, torch.cuda.device(pool.index):
        side = capture_stream(pool.index, pool.stream)
        # "thread_local": other threads may do what can't be captured.
        capture = torch.cuda.graph(
            graph, pool=pool.handle, stream=side.stream, capture_error_mode="thread_local"
        )
        try:
            with side.holding_workspaces(), capture:
                results = run()
        except BaseException:
            _recover(pool, current, side.stream)
            raise
    pool.measure()
    return graph, results


def _recover(pool: Pool, current: torch.cuda.Stream, side: torch.cuda.Stream) -> None:
    """Undo what torch leaves behind where a capture does not end well."""
    torch.cuda.set_stream(current)
    pool.is_used = True  # if nothing else is in it, the next graph takes another
    if _by_stream.get((pool.index, pool.stream)) is pool:
        del _by_stream[pool.index, pool.stream]  # nothing more is captured into it
    with contextlib.suppress(RuntimeError):  # the capture did end: nothing is left
        torch._C._cuda_endAllocateToPool(pool.index, pool.handle)  # noqa: SLF001 (its only home)
        torch._C._cuda_releasePool(pool.index, pool.handle)  # noqa: SLF001 (as above)
    # The generator of random numbers takes itself for captured until a capture ends well.
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side, capture_error_mode="thread_local"):
        pass
