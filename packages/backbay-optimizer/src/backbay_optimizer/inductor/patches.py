"""Replace a function of torch's for the duration of a context."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Patch:
    """Another function in the place of one of torch's: for all threads, until the last one leaves.

    A backward is compiled in a thread of autograd's, for which the thread that called it may wait:
    so nobody waits here for who is inside.
    """

    def __init__(self, instead: Callable[[Any], Any]) -> None:
        """Make one.

        Args:
            instead: takes torch's function, and returns the other one.
        """
        self._instead = instead
        self._lock = threading.Lock()
        self._inside = 0
        self._own: Any = None
        self._other: Any = None

    @contextlib.contextmanager
    def held(self, owner: Any, name: str) -> Iterator[None]:
        """Put the other function there, and take it away when nobody is inside any more.

        Args:
            owner: the module or class that has the function; the same one each time.
            name: the function's.
        """
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._own = getattr(owner, name)
                self._other = self._instead(self._own)
                setattr(owner, name, self._other)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                # Somebody else may have replaced it meanwhile.
                if not self._inside and getattr(owner, name) is self._other:
                    setattr(owner, name, self._own)
