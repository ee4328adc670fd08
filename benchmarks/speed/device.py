"""Times calls on a device, and measures what the device can do."""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from backbay.timing.device import device_name, synchronize
from speed.requests import Limited

FLUSH_BYTES = 2**28
"""Written before each call, so that no operand is left in the L2 cache: four times the H200's."""
_COPIED_BYTES = {"cuda": 2**31, "cpu": 2**22}
_SIDE = {"cuda": 8192, "cpu": 256}
_REPEATS = 30
_SLEEP_CYCLES = 1_000_000
"""Half a millisecond of the device's: time for the host to hand everything over."""

Call = Callable[[], Any]


def block_seconds(call: Call, calls: int, device: torch.device) -> float:
    """Time calls in a row, as a user's loop makes them."""
    with _no_collection():
        if device.type == "cuda":
            return _between_events(lambda: [call() for _ in range(calls)])
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start


class Flushed:
    """Times single calls on cold caches: on a GPU by events, with the L2 cache written over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size = FLUSH_BYTES if device.type == "cuda" else 0
        self._flush = torch.empty(size, dtype=torch.int8, device=device)

    def seconds(self, call: Call, calls: int, *, replayed: bool) -> float:
        """Return the median of some calls, times their number."""
        with _no_collection():
            if self._device.type != "cuda":
                return calls * statistics.median(_clocked(call) for _ in range(calls))
            return calls * statistics.median(self._timed(call, calls, replayed=replayed))

    def _timed(self, call: Call, calls: int, *, replayed: bool) -> list[float]:
        pairs = []
        for _ in range(calls):
            pair = _event(), _event()
            self._flush.zero_()
            if not replayed:  # the host must not be what is measured
                torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call] # noqa: SLF001
            pair[0].record()
            call()
            pair[1].record()
            pairs.append(pair)
        torch.cuda.synchronize()
        return [1e-3 * start.elapsed_time(end) for start, end in pairs]


def replayed(call: Call) -> Call:
    """Return the replay of a CUDA graph of a call; it was called before, and is warm.

    Raises whatever the capture raises.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def limits(device: str) -> Limited:
    """Measure a device copy of random bfloat16 and a square bfloat16 matmul."""
    where = torch.device(device)
    flushed = Flushed(where)
    generator = torch.Generator(where).manual_seed(0)
    count, side = _COPIED_BYTES[where.type] // 2, _SIDE[where.type]

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=where, dtype=torch.bfloat16)

    source = random(count)
    target = torch.empty_like(source)
    copy_s = _median(flushed, lambda: target.copy_(source))
    one, other = random(side, side), random(side, side)
    matmul_s = _median(flushed, lambda: torch.mm(one, other))
    synchronize(where)
    return Limited(
        device_name=device_name(where),
        copy_bytes_s=4 * count / copy_s,
        matmul_flops_s=2 * side**3 / matmul_s,
    )


def _median(flushed: Flushed, call: Call) -> float:
    flushed.seconds(call, 3, replayed=False)
    return flushed.seconds(call, _REPEATS, replayed=False) / _REPEATS


def _between_events(run: Call) -> float:
    start, end = _event(), _event()
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * float(start.elapsed_time(end))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch has no stub


def _clocked(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting meanwhile: it would be charged to whoever is timed.

    Nor is anything collected before: with these libraries loaded that takes a third of a second,
    for each of hundreds of blocks.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
