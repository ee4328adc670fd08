"""Where the time of a block goes, by samples of this thread's stack.

A profiler of calls makes code of many small calls look slower than it is, and on Python 3.12
``cProfile`` has time at places that were not running. Samples slow the block down as well, and deep
stacks more: compare them with each other, not with times.
"""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

_PACKAGES = "site-packages/"


@dataclass(slots=True)
class Stacks:
    """Calls, and the seconds in each of them, with those that it made."""

    seconds: float = 0.0
    below: dict[str, "Stacks"] = field(default_factory=dict)
    """By function, file and line."""

    def add(self, path: Sequence[str], seconds: float) -> None:
        """Add a sample."""
        stacks = self
        stacks.seconds += seconds
        for name in path:
            stacks = stacks.below.setdefault(name, Stacks())
            stacks.seconds += seconds

    def text(self, least: float = 0.005) -> str:
        """Return a line for each call of so many seconds or more, callers before callees."""
        lines, left = list[str](), [(-1, "", self)]
        while left:  # not recursively: a stack may be deep
            depth, name, stacks = left.pop()
            if depth >= 0:
                lines.append(f"{stacks.seconds * 1e3:7.0f} {' ' * depth}{name}\n")
            below = [(depth + 1, *x) for x in stacks.below.items() if x[1].seconds >= least]
            left += sorted(below, key=lambda x: x[2].seconds)
        return "".join(lines)


@contextlib.contextmanager
def sampled(root: str, interval: float = 0.001) -> Iterator[Stacks]:
    """Yield the stacks of this thread in the block, complete at its end.

    Args:
        root: a function: of stacks with it, what is below is told apart, of others nothing.
        interval: seconds between two samples.
    """
    found, over, thread = Stacks(), threading.Event(), threading.get_ident()

    def sample() -> None:
        last = time.perf_counter()
        while not over.wait(interval):
            frame, now = sys._current_frames().get(thread), time.perf_counter()  # noqa: SLF001 (no other)
            found.add(_path(frame, root), now - last)
            last = now

    sampler, switch = threading.Thread(target=sample, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(interval / 2)  # or samples wait for 5 ms
    sampler.start()
    try:
        yield found
    finally:
        over.set()
        sampler.join()
        sys.setswitchinterval(switch)


def _path(frame: FrameType | None, root: str) -> list[str]:
    codes = list[CodeType]()
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    codes.reverse()
    first = next((n for n, code in enumerate(codes) if code.co_name == root), None)
    return ["elsewhere"] if first is None else [_text(x) for x in codes[first:]]


@functools.cache
def _text(code: CodeType) -> str:
    file = code.co_filename
    short = "/".join(Path(file).parts[-2:])
    file = file.rpartition(_PACKAGES)[2] if _PACKAGES in file else short
    return f"{code.co_name} {file}:{code.co_firstlineno}"
