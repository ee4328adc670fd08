"""Races on one device take turns: while one times its arms, no other one works there.

Who waits to time goes before who is about to work: so those that compile side by side are then
timed one after the other, and nobody compiles alone in between.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from backbay.cache import cache_folder, own_folder


class Turns:
    """Of a race that has its device for itself."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Wait until nobody times; others may work meanwhile."""
        yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Wait until nobody else works or times."""
        yield


class SharedDevice(Turns):
    """Of races of one user in several processes of a machine: a lock on a file, shared by all.

    The system takes it back from who dies. Windows has no such locks: nobody waits there.
    """

    def __init__(self, device: str) -> None:
        """Name the device, as all who share it do."""
        digest = hashlib.sha256(device.encode()).hexdigest()[:16]
        self._path = cache_folder() / f"timing-{digest}.lock"
        self._waiting = self._path.with_suffix(".waiting")
        """Shared by all who wait to time, or do; to begin to work it must be free."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Wait until nobody times; others may work meanwhile."""
        with contextlib.ExitStack() as held:
            with _locked(self._waiting, exclusive=True):
                held.enter_context(_locked(self._path, exclusive=False))
            yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Wait until nobody else works or times."""
        with _locked(self._waiting, exclusive=False), _locked(self._path, exclusive=True):
            yield


@contextlib.contextmanager
def _locked(path: Path, *, exclusive: bool) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import fcntl  # noqa: PLC0415 (absent on Windows)

    own_folder(path)
    with path.open("a") as file:  # child processes don't inherit it
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
