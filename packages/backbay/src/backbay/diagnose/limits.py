"""What this machine can do at most: copy bandwidth and matrix products; the best seen is kept.

What was measured beside other processes is no limit, so it is measured each time, for a moment.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch

from backbay.cache import cache_folder, read_cached, write_cached
from backbay.diagnose.record import LimitRecord
from backbay.reporting.machine import cores, processor
from backbay.timing import clock, memory
from backbay.timing.device import device_name

_ROUNDS = 7
_COPIED = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Bytes: more than caches hold."""
_SIDE = {"cpu": 1024, "cuda": 8192}
_PARTS = 8
"""Of the memory that nobody uses, what one operand takes has at most such a part."""


def limit(device: torch.device, dtype: torch.dtype) -> LimitRecord:
    """Return the most that a device was ever seen to do; the cache folder has what was before."""
    threads = torch.get_num_threads()
    known = (device_name(device), processor(), cores(), threads, dtype, torch.__version__)
    digest = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    path = cache_folder() / "limits" / f"{digest}.json"
    best = _measured(device, dtype)
    with contextlib.suppress(OSError):  # what can't be kept is measured again next time
        kept = read_cached(path, LimitRecord)
        best = best if kept is None else _better(best, kept)
        write_cached(path, best)
    return best


def _better(one: LimitRecord, other: LimitRecord) -> LimitRecord:
    return LimitRecord(
        copy_bytes_s=max(one.copy_bytes_s, other.copy_bytes_s),
        product_operations_s=max(one.product_operations_s, other.product_operations_s),
    )


def _measured(device: torch.device, dtype: torch.dtype) -> LimitRecord:
    free = memory.free_bytes(device)  # a loop that is looked at may have taken nearly all
    size = min(_COPIED.get(device.type, _COPIED["cpu"]), free // _PARTS)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = min(_SIDE.get(device.type, _SIDE["cpu"]), math.isqrt(free // (_PARTS * dtype.itemsize)))
    own = torch.Generator(device).manual_seed(0)  # a loop that is looked at draws from torch's
    left = torch.randn(side, side, generator=own, device=device, dtype=dtype)
    return LimitRecord(
        copy_bytes_s=2 * size / _seconds(lambda: target.copy_(source), device),
        product_operations_s=2 * side**3 / _seconds(lambda: left @ left, device),
    )


def _seconds(step: Callable[[], Any], device: torch.device) -> float:
    """Return the time of the fastest of some calls."""
    clock.seconds(step, 2, device)
    return min(clock.seconds(step, 1, device) for _ in range(_ROUNDS))
