"""Times that are too good to be true; measured with CUDA's events, on CUDA only."""

from collections.abc import Callable
from typing import Any

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("honesty", "speed")

_ELEMENTS = 1 << 26
"""Many times what a cache holds."""


@theme.case()
def faster_than_memory(subject: Subject) -> None:
    x = normal(subject, _ELEMENTS)
    call, into = subject.compile(lambda x: x.sin() * 2 + 1), torch.empty_like(x)
    ours, copying = _milliseconds(lambda: call(x)), _milliseconds(lambda: into.copy_(x))
    # It reads and writes as much as a copy does.
    with subject.must("vacuous", f"it takes {ours:.3f} ms, and a copy alone {copying:.3f} ms"):
        assert ours > 0.5 * copying


def _milliseconds(run: Callable[[], Any]) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)
