"""Streams to capture in, whose cuBLAS workspaces nobody else uses.

torch keeps workspaces of cuBLAS and cuBLASLt for each thread and stream, and a CUDA graph contains
the addresses of those that its products were captured with. So this memory must not be freed or
used by others while the graph lives. torch's own graphs release all workspaces before and after a
capture, including those that products of other threads are about to write in (docs/upstream.md).
Here none is released. What one stream replays, one graph after another, is captured in a stream
that nobody else has, and the workspaces of that are made beforehand, in memory that is kept.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import torch

_NON_BLOCKING = 1
"""It does not wait for the default stream: work there would end a capture otherwise."""
_ATTEMPTS = 3
_by_stream: dict[tuple[int, int], "CaptureStream"] = {}
"""By device, and the stream that replays."""
_all: list["CaptureStream"] = []
"""Those, and retired ones whose workspaces graphs still use."""


class CaptureStream:
    """Where what one stream replays is captured."""

    def __init__(self, index: int, stream: int) -> None:
        """Make one.

        Args:
            index: of the device, which is the current one.
            stream: that replays, as CUDA's own handle.
        """
        self.index = index
        self.workspace_bytes = 0
        """What its workspaces take of the device's memory."""
        self._replaying = stream
        self._pool = torch.cuda.MemPool()
        # torch has 32 of a device, and hands them out in turn: others would get this one, too.
        self.stream = torch.cuda.ExternalStream(_made(), index)  # type: ignore[no-untyped-call] # torch has no stub
        _all.append(self)

    @contextlib.contextmanager
    def holding_workspaces(self) -> Iterator[None]:
        """Have this thread's workspaces in memory that is kept, while something is captured.

        Mostly they are there. They are made in a thread's first capture, and again after somebody
        has released all. Nothing may be replayed in between. If they are released meanwhile, what
        takes their place may be in the graph's own memory, where no later graph is to find it: the
        next capture has another stream.
        """
        torch.cuda.synchronize()  # a replay may be writing in them
        torch.cuda.empty_cache()  # torch does not do so itself where a pool lacks memory
        used = 0
        for _ in range(_ATTEMPTS):
            self._make_workspaces()
            used = self._total("allocated_size")
            if used:
                break
        self.workspace_bytes = self._total("total_size")
        try:
            yield
        finally:
            if self._total("allocated_size") < used:
                del _by_stream[self.index, self._replaying]

    def _make_workspaces(self) -> None:
        with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._pool, self.index):
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call] # makes cuBLAS's
            square = torch.zeros((16, 16), dtype=torch.float16, device=f"cuda:{self.index}")
            torch._addmm_activation(square[0], square, square)  # noqa: SLF001 (makes cuBLASLt's)

    def _total(self, name: str) -> int:
        snapshot: Any = torch.cuda.memory_snapshot
        return sum(x[name] for x in snapshot(self._pool.id, include_traces=False))


def capture_stream(index: int, stream: int) -> CaptureStream:
    """Return where something is captured that a stream is to replay.

    Args:
        index: of the device, which is the current one.
        stream: as CUDA's own handle.
    """
    if (index, stream) not in _by_stream:
        _by_stream[index, stream] = CaptureStream(index, stream)
    return _by_stream[index, stream]


def workspace_bytes(index: int) -> int:
    """Return what workspaces of all such streams take of a device's memory."""
    return sum(x.workspace_bytes for x in _all if x.index == index)


def _made() -> int:
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    handle = ctypes.c_void_p()
    code = driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code or not handle.value:
        raise RuntimeError(f"CUDA made no stream to capture in: cuStreamCreate gave error {code}")
    return handle.value
