"""How long calls take, by the clock of the device that runs them."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(step: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Return how long some calls take together; on a GPU, from its first kernel to its last."""
    if device.type == "cuda":
        return _cuda_seconds(step, calls)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return time.perf_counter() - start


def block(step: Callable[[], Any], *, warmups: int, calls: int, device: torch.device) -> float:
    """Return how long some calls take together, after others that are not counted."""
    seconds(step, warmups, device)
    gc.collect(1)  # what blocks leave is young; to look at all objects takes longer than a block
    gc.disable()  # a collection inside a block would be charged to the backend
    try:
        return seconds(step, calls, device)
    finally:
        gc.enable()


def _cuda_seconds(step: Callable[[], Any], calls: int) -> float:
    start, end = _event(), _event()
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch has no stub
