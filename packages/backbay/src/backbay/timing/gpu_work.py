"""What a GPU does during one step, as a record. No torch here."""

import msgspec


class GpuWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does during one step."""

    busy_ms: float
    """During which it runs at least one kernel or copy: what is missing to a step's time, it waits.
    """
    launches: int
    """Kernels and copies."""
    copied_ms: float = 0.0
    """Of copies between the host and a GPU, or two GPUs."""
    copies: int = 0
    """How many of these there are."""
    moved_ms: float = 0.0
    """Of kernels and copies that only move data within a GPU, or change its layout or dtype."""
    moves: int = 0
    """How many of these there are."""
