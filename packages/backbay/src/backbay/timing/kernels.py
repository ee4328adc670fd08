"""What a GPU does during a step: how long it works, and what it copies from and to the host."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined] # it is there
from torch.profiler import ProfilerActivity, profile

from backbay.timing.gpu_work import GpuWork

_CALLS = 3
"""That are watched; the first one after a pause is not."""
_BETWEEN = ("HtoD", "DtoH", "PtoP")
"""In the name of a copy: from the host, to it, and from one GPU to another."""
LIBRARIES_COPIES = re.compile(r"Memcpy DtoD.*|.*(?:direct_copy_kernel|nchwToNhwc|nhwcToNchw).*")
"""Names of copies by CUDA, torch and cuDNN."""
_INDUCTORS_COPIES = re.compile(
    r"""
    triton_poi_fused (?: _ (?:
        _to_copy | copy_? | clone | contiguous | convert_element_type | (?:_unsafe_)? view | reshape
        | permute | transpose | t | expand | slice | select | (?:un)? squeeze | as_strided | detach
    ) )+ _\d+
    """,
    re.VERBOSE,
)
"""Names of Inductor's kernels that only move data: they are named after their operators."""


def gpu_work(step: Callable[[], Any], device: torch.device) -> GpuWork | None:
    """Return what a GPU does during a step, by torch's profiler; ``None`` where it saw nothing.

    Kernels take as long as without it, and the host takes longer.
    """
    if device.type != "cuda":
        return None
    step()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(_CALLS):
            step()
        torch.cuda.synchronize(device)
    found = [
        (x.time_range.start, x.time_range.end, x.name)
        for x in profiled.events() or ()
        if x.device_type == DeviceType.CUDA and not x.is_user_annotation
    ]
    if not found:
        return None
    copies = [end - start for start, end, name in found if any(x in name for x in _BETWEEN)]
    moves = [end - start for start, end, name in found if _only_moves(name)]
    return GpuWork(
        busy_ms=sum(end - start for start, end in _joined(found)) / 1e3 / _CALLS,
        launches=len(found) // _CALLS,
        copied_ms=sum(copies) / 1e3 / _CALLS,
        copies=len(copies) // _CALLS,
        moved_ms=sum(moves) / 1e3 / _CALLS,
        moves=len(moves) // _CALLS,
    )


def _only_moves(name: str) -> bool:
    return any(x.fullmatch(name) is not None for x in (LIBRARIES_COPIES, _INDUCTORS_COPIES))


def _joined(spans: list[tuple[float, float, str]]) -> Iterator[tuple[float, float]]:
    """Yield the times that spans cover, each once: streams may run beside each other."""
    ends = float("-inf")
    for start, end, _ in sorted(spans):
        if end > ends:
            yield max(start, ends), end
            ends = end
