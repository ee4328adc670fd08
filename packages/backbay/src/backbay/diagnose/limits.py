"""What this machine can do at most: copy bandwidth and matrix products, measured once and kept."""

import contextlib
import hashlib
import statistics
from collections.abc import Callable
from typing import Any

import torch

from backbay.cache import Untrusted, cache_folder, read_cached, write_cached
from backbay.diagnose.record import LimitRecord
from backbay.reporting.machine import cores, processor
from backbay.timing import clock
from backbay.timing.device import device_name

_ROUNDS = 7
_COPIED = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Bytes: more than caches hold."""
_SIDE = {"cpu": 1024, "cuda": 8192}


def limit(device: torch.device, dtype: torch.dtype) -> LimitRecord:
    """Return what a device can do, from the cache folder where it was measured before."""
    threads = torch.get_num_threads()
    known = (device_name(device), processor(), cores(), threads, dtype, torch.__version__)
    digest = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    path = cache_folder() / "limits" / f"{digest}.json"
    with contextlib.suppress(Untrusted):
        kept = read_cached(path, LimitRecord)
        if kept is not None:
            return kept
    measured = _measured(device, dtype)
    with contextlib.suppress(OSError):  # it is measured again next time
        write_cached(path, measured)
    return measured


def _measured(device: torch.device, dtype: torch.dtype) -> LimitRecord:
    size = _COPIED.get(device.type, _COPIED["cpu"])
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = _SIDE.get(device.type, _SIDE["cpu"])
    left = torch.randn(side, side, device=device, dtype=dtype)
    return LimitRecord(
        copy_bytes_s=2 * size / _seconds(lambda: target.copy_(source), device),
        product_operations_s=2 * side**3 / _seconds(lambda: left @ left, device),
    )


def _seconds(step: Callable[[], Any], device: torch.device) -> float:
    """Return the time of a call that nobody disturbed: of the fastest half of some."""
    clock.seconds(step, 2, device)
    times = sorted(clock.seconds(step, 1, device) for _ in range(_ROUNDS))
    return statistics.median(times[: _ROUNDS // 2 + 1])
