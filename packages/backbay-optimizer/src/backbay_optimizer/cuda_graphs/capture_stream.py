"""Streams to capture in, whose cuBLAS workspaces nobody else uses.

torch keeps workspaces of cuBLAS and cuBLASLt for each thread and stream, and a CUDA graph contains
the addresses of those that its products were captured with. So this memory must not be freed or
used by others while the graph lives. torch's own graphs release all workspaces before and after a
capture, including those that products of other threads are about to write in (docs/upstream.md).
This module releases none: what one stream replays is captured in a stream of its own, whose
workspaces are made beforehand, in memory that is kept. Whoever releases them, as later torch also
does where a graph of the stream goes, frees nothing that a graph uses.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

_NON_BLOCKING = 1
"""It does not wait for the default stream: work there would end a capture otherwise."""
_ATTEMPTS = 4
"""To have workspaces that nobody releases while they are made."""
_by_stream: dict[tuple[int, int], "CaptureStream"] = {}
"""By device, and the stream that replays."""
_all: list["CaptureStream"] = []
"""Those, and retired ones, whose workspaces graphs may still use."""


class CaptureStream:
    """A stream that captures what another stream replays."""

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
        # It is never destroyed: to free its memory while Python ends, in a forked process or after
        # an error of the device, would abort.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))
        # torch has 32 of a device, and hands them out in turn: others would get this one, too.
        self.stream = torch.cuda.ExternalStream(_made(), index)  # type: ignore[no-untyped-call] # torch has no stub
        _all.append(self)

    @contextlib.contextmanager
    def holding_workspaces(self) -> Iterator[None]:
        """Keep this thread's workspaces in this stream's own memory during a capture.

        Usually they exist already. They are made in a thread's first capture, and again after
        somebody has released all. Nothing may be replayed in between. If they are released during
        the capture, torch may make new ones in the graph's memory. No later graph may use those, so
        the next capture gets a new stream.

        Raises:
            RuntimeError: those of cuBLASLt can't be made.
        """
        if os.environ.get("DISABLE_ADDMM_CUDA_LT") == "1":
            raise RuntimeError("with DISABLE_ADDMM_CUDA_LT=1 no workspace of cuBLASLt can be made")
        torch.cuda.synchronize()  # a replay may be writing in them
        torch.cuda.empty_cache()  # torch does not do so itself where a pool lacks memory
        used, settled = -1, False
        for _ in range(_ATTEMPTS):
            self._make_workspaces()
            before, used = used, self._total("allocated_size")
            settled = used == before
            if settled:
                break
        self.workspace_bytes = self._total("total_size")
        try:
            yield
        finally:
            if not settled or self._total("allocated_size") < used:
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
    """Return the stream to capture in for a stream that replays.

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
