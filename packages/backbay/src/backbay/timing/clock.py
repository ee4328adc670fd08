"""How long calls take, by the clock of the device that runs them.

The clocks are bound when this is imported, before any backend is: who replaces ``time``'s or
torch's afterwards changes nothing here.
"""

import gc
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch.cuda import Event, synchronize

_RECORD, _ELAPSED_MS = Event.record, Event.elapsed_time


def now() -> float:
    """Return the seconds of a clock that begins anywhere."""
    return perf_counter()


def seconds(step: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Return how long some calls take together; on a GPU, from its first kernel to its last."""
    return _timed([step] * calls, device)[0]


def block(step: Callable[[], Any], *, warmups: int, calls: int, device: torch.device) -> float:
    """Return how long some calls take together, after others that are not counted."""
    return block_of([step] * (warmups + calls), warmups=warmups, device=device)[0]


def block_of(
    steps: Sequence[Callable[[], Any]],
    *,
    warmups: int,
    device: torch.device,
    waits: bool = False,
) -> tuple[float, Any]:
    """Return how long calls take together, after the first of them, which are not counted.

    Args:
        steps: the calls.
        warmups: how many of them are not counted.
        device: whose time counts.
        waits: whether it has finished each call before the next begins; a CPU always has.

    Returns:
        Seconds, and what the last call returned.
    """
    _timed(steps[:warmups], device)
    gc.collect(1)  # what blocks leave is young; to look at all objects takes longer than a block
    was_enabled = gc.isenabled()
    gc.disable()  # a collection inside a block would be charged to the backend
    try:
        if waits and device.type == "cuda":
            return _one_by_one(steps[warmups:])
        return _timed(steps[warmups:], device)
    finally:
        if was_enabled:
            gc.enable()


def handed_over(step: Callable[[], Any], device: torch.device) -> tuple[float, float, Any]:
    """Return how long a call takes to hand over its work, and to be done, and what it returned.

    The device is idle when it begins. On a CPU both are the same.
    """
    waits = device.type == "cuda"
    if waits:
        synchronize(device)
    start = perf_counter()
    result = step()
    handed = perf_counter()
    if waits:
        synchronize(device)
    return handed - start, perf_counter() - start, result


def _timed(steps: Sequence[Callable[[], Any]], device: torch.device) -> tuple[float, Any]:
    if not steps:
        return 0.0, None
    *others, last = steps
    if device.type == "cuda":
        return _cuda_timed(others, last)
    start = perf_counter()
    for step in others:
        step()
    result = last()
    return perf_counter() - start, result


def _cuda_timed(others: Sequence[Callable[[], Any]], last: Callable[[], Any]) -> tuple[float, Any]:
    start, end = _event(), _event()
    synchronize()
    _RECORD(start)
    for step in others:
        step()
    result = last()
    _RECORD(end)
    synchronize()
    return float(_ELAPSED_MS(start, end)) / 1e3, result


def _one_by_one(steps: Sequence[Callable[[], Any]]) -> tuple[float, Any]:
    result = None
    synchronize()
    start = perf_counter()
    for step in steps:
        result = step()
        synchronize()
    return perf_counter() - start, result


def _event() -> Event:
    return Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch has no stub
