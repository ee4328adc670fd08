"""The compile log: one record for each graph that Backbay chose or changed a backend for.

A choice that is made automatically must not be silent: you can see what was asked for, what ran,
and why. Kept in memory, the newest ten thousand; nothing is written to disk.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One compiled graph."""

    asked: str
    """The backend that was asked for."""
    ran: str
    """The backend that compiled the graph."""
    why: str
    """What decided it; one line."""
    fell_back: bool = False
    """Whether something else ran than what was asked for or configured."""
    timed: bool = False
    """Whether measured times decided."""
    device: str = ""
    """Device type of the graph's inputs."""
    nodes: int = 0
    """How many nodes the graph has; operators, where ``owned`` is stated."""
    owned: int | None = None
    """How many operators ``ran`` compiled; the rest went to a fallback. None: it was not counted.
    """
    when: datetime = field(default_factory=lambda: datetime.now(UTC))


_records: deque[Record] = deque(maxlen=_MOST)
_lock = threading.Lock()


def note(record: Record) -> None:
    """Add a record."""
    with _lock:
        _records.append(record)


def records() -> list[Record]:
    """Return every record, the oldest first."""
    with _lock:
        return list(_records)


def clear() -> None:
    """Forget every record."""
    with _lock:
        _records.clear()
