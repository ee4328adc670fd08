"""Interrupts that wait: half of what is being made can't be ended."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM that would raise here, until the block has ended.

    Only the main thread is ever interrupted so; in others the block is run as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda sent, frame: held.append((sent, frame)))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        for sent, frame in held:
            raising[signal.Signals(sent)](sent, frame)
