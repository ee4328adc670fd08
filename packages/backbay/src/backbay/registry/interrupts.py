"""Was an exception raised by foreign code, or by a signal that came while it ran?

Python turns Ctrl-C into a ``KeyboardInterrupt`` between two instructions, or inside a call that
waits. Where foreign code says ``raise`` itself, its traceback ends at an instruction that raises,
at which Python handles no signals. What a handler of the application's raises (for SIGTERM, or a
time limit) has that handler among its frames.

What can't be told apart counts as a signal: a process that interrupts itself, and a
``KeyboardInterrupt`` that compiled code raises.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, TracebackType

from backbay.registry.bridge import unwrapped


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals that are handled, as of the moment before foreign code runs."""

    handlers: frozenset[CodeType]
    """Code of those that are written in Python."""

    handled: BaseException | None
    """What was raised before, and is being handled."""

    @classmethod
    def now(cls) -> "Signals":
        """Look at this process's handlers."""
        import signal  # noqa: PLC0415 (a listing runs no foreign code)

        found = (unwrapped(signal.getsignal(x)) for x in signal.valid_signals())
        codes = (getattr(getattr(x, "__func__", x), "__code__", None) for x in found)
        return cls(frozenset(x for x in codes if x is not None), sys.exception())

    def raised(self, error: BaseException) -> bool:
        """Whether a signal raised this, or what it was raised in place of."""
        return any(self._raised(x) for x in self._chain(error))

    def _chain(self, error: BaseException) -> Iterator[BaseException]:
        seen: set[int] = set()
        found: BaseException | None = error
        while found is not None and found is not self.handled and id(found) not in seen:
            yield found
            seen.add(id(found))
            found = found.__cause__ or found.__context__

    def _raised(self, error: BaseException) -> bool:
        entries = list(_entries(error.__traceback__))
        if any(x.tb_frame.f_code in self.handlers for x in entries):
            return True
        return isinstance(error, KeyboardInterrupt) and not (entries and _raises(entries[-1]))


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _raises(entry: TracebackType) -> bool:
    """Whether an entry of a traceback is at a ``raise`` statement."""
    from opcode import opmap  # noqa: PLC0415 (only a failure needs it)

    code = entry.tb_frame.f_code.co_code
    return code[entry.tb_lasti : entry.tb_lasti + 1] == bytes([opmap["RAISE_VARARGS"]])
