"""Peak memory of a stretch of work: the device allocator's on a GPU, the process's own on a CPU."""

import sys
from pathlib import Path

import psutil
import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): sets the peak resident set size to its present value


def reset_peak(device: torch.device) -> None:
    """Start a new stretch."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not allowed: the peak then counts from the process's start
        return


def free_bytes(device: torch.device) -> int:
    """Return how much memory nobody uses: of a GPU, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak since the last reset, in bytes; ``None`` where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    return int(peak.split()[1]) * 1024 if peak else None
