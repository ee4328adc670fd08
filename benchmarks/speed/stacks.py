"""Where the time of a block goes, by samples of this thread's stack.

A profiler of calls makes code of many small calls look slower than it is, and on Python 3.12
``cProfile`` has time at places that were not running. Samples slow the block down as well, by up to
a half, but everywhere alike: compare them with each other, not with times.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_PACKAGES = "site-packages/"


@dataclass(slots=True)
class Stacks:
    """Calls, and the seconds in each of them, with those that it made."""

    seconds: float = 0.0
    below: dict[str, "Stacks"] = field(default_factory=dict)
    """By function, file and line."""

    def add(self, path: list[str], seconds: float) -> None:
        """Add a sample."""
        self.seconds += seconds
        if path:
            self.below.setdefault(path[0], Stacks()).add(path[1:], seconds)

    def text(self, least: float = 0.005, depth: int = 0) -> str:
        """Return a line for each call of so many seconds or more, callers before callees."""
        found = sorted(self.below.items(), key=lambda x: -x[1].seconds)
        return "".join(
            f"{stacks.seconds * 1e3:7.0f} {' ' * depth}{name}\n{stacks.text(least, depth + 1)}"
            for name, stacks in found
            if stacks.seconds >= least
        )


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
    names = list[tuple[str, str]]()
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        file = (
            file.rpartition(_PACKAGES)[2] if _PACKAGES in file else "/".join(Path(file).parts[-2:])
        )
        names.append((code.co_name, f"{code.co_name} {file}:{code.co_firstlineno}"))
        frame = frame.f_back
    names.reverse()
    first = next((n for n, (name, _) in enumerate(names) if name == root), None)
    return ["elsewhere"] if first is None else [text for _, text in names[first:]]
