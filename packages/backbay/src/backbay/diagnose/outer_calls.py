"""Calls of what torch.compile made, in code of which nobody says where a step begins.

Torch calls a hook after it has looked up which compiled graph fits, and another before it compiles.
In both, the caller that torch.compile put around the user's function is on the stack. Nothing of
torch is patched, and without the hooks a call costs what it cost before.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch._C._dynamo.eval_frame import set_guard_complete_hook
from torch._dynamo.callback import callback_handler

if TYPE_CHECKING:
    from torch._dynamo.types import DynamoGuardCompleteHook

_CALLER = "compile_wrapper"
_INNER = "_torchdynamo_orig_backend"
_MARK = "backbay.diagnose"
"""Put among the local names of a call that was met: it goes with the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What torch.compile was given."""

    function: Callable[..., Any]
    """The user's; of a module, its method that is called."""
    backend: Any
    """What compiles graphs."""


class OuterCalls:
    """Calls of the compiled function that was called first, by the thread that watches."""

    def __init__(self, begun: Callable[[], None]) -> None:
        """Watch, once it is on.

        Args:
            begun: called as each call begins.
        """
        self.compiled: Compiled | None = None
        self._begun = begun
        self._thread = threading.get_ident()
        self._before: DynamoGuardCompleteHook | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch until the block ends."""
        hook = self._looked_up  # one object, which torch holds no reference to while it runs
        self._before = set_guard_complete_hook(hook)
        started = callback_handler.register_start_callback(lambda _: self._met())
        try:
            yield
        finally:
            callback_handler.remove_start_callback(started)
            set_guard_complete_hook(self._before)

    def _looked_up(self, cache_hit: bool) -> bool:
        self._met()
        return cache_hit if self._before is None else self._before(cache_hit)

    def _met(self) -> None:
        caller = _outermost(sys._getframe(1))  # noqa: SLF001 (the one way to the stack)
        if caller is None or threading.get_ident() != self._thread:
            return
        names = caller.f_locals
        function, callback = names.get("fn"), names.get("callback")
        if function is None or callback is None:
            return
        if self.compiled is None:
            self.compiled = Compiled(function=function, backend=_innermost(callback))
        if function is not self.compiled.function or _MARK in names:
            return
        names[_MARK] = True
        self._begun()


def _outermost(frame: FrameType | None) -> FrameType | None:
    found = None
    while frame is not None:
        if frame.f_code.co_name == _CALLER:
            found = frame
        frame = frame.f_back
    return found


def _innermost(backend: Any) -> Any:
    """Return a backend without what Dynamo puts around it."""
    while (inner := getattr(backend, _INNER, None)) is not None:
        backend = inner
    return backend
