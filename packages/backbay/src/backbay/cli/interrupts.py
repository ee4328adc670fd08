"""What ends a command from outside: Ctrl-C, and SIGTERM, which is a second kind of it.

Both are raised where the command is, so that it ends its children, removes what is temporary and
writes what it has. Exit codes are those of a shell: 128 and the number of the signal.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGINT_CODE = 130
SIGTERM_CODE = 143


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM raise `Terminated` in the block; who handles it already goes on to do so."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, _raise)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
