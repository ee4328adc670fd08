"""What is recorded of one of Dynamo's graphs, whether it is used, and why not."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from backbay import compile_log
from backbay_optimizer.cuda_graphs.addresses import Addresses
from backbay_optimizer.cuda_graphs.capture import pool_bytes

MOST_SIZES = 8
"""That one of Dynamo's graphs is recorded for."""
MOST_CAPTURES = 64
"""Of one, in a row: it may be a layer's, and be called with the parameters of many layers; or with
others in each call, and be captured for nothing."""
PAYS = 16
"""Replays for which one more is captured."""
MOST_STALE = 8
"""Recordings of one that are kept though their parameters are elsewhere: these may come back."""
Key = tuple[Any, ...]
One = TypeVar("One")


class Recorded(Protocol):
    """A recording, or a forward and its backward."""

    @property
    def addresses(self) -> Addresses:
        """Of parameters."""


class Held(Protocol):
    """What is recorded of a graph."""

    @property
    def lock(self) -> threading.Lock:
        """Held while something of it is recorded, replayed or dropped."""

    @property
    def by_key(self) -> dict[Key, deque[Any]]:
        """What is `Recorded`, by sizes."""

    @property
    def number(self) -> int:
        """How many recordings there are; a forward and its backward are one."""


@dataclass(eq=False)
class Recordings:
    """What is recorded of one of Dynamo's graphs, and whether it is used."""

    name: str
    """The backend, for the compile log."""
    share: float = 0.25
    """The part of a device's memory that all pools together may hold."""
    enabled: bool = True
    """Whether anything is recorded or replayed."""
    stopped: bool = False
    """Whether that is over: nothing is recorded or replayed any more."""
    full: str | None = None
    """Why nothing more is recorded of a training graph, if there is a reason."""
    refused: str | None = None
    """Why code of it can't be recorded, if some can't."""
    writes: bool = False
    """Whether its code writes inputs: buffers, say."""
    trains: bool = False
    """Whether its code is a forward that a backward belongs to."""
    saved: int | None = None
    """How many of a forward's last results are saved for its backward; None until that is known."""
    ran_backward: bool = False
    """Whether a backward has run."""
    credit: int = MOST_CAPTURES * PAYS
    """Replays for which no recording was made yet."""
    held: Held | None = None
    _all: ClassVar["weakref.WeakSet[Recordings]"] = weakref.WeakSet()
    _known: ClassVar[threading.Lock] = threading.Lock()
    """Held while `_all` is read or added to."""
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Make it known."""
        with self._known:
            self._all.add(self)

    @classmethod
    def release_stale(cls) -> None:
        """Drop what any graph has recorded for parameters that are elsewhere, or are no more.

        What is being used is left alone.
        """
        with cls._known:
            known = list(cls._all)
        for one in known:
            held = one.held
            if held is None or not held.lock.acquire(blocking=False):
                continue
            try:
                drop_stale(held, least=1)
                if not held.number and one.held is held:
                    one.forget()  # with it goes its pool
            finally:
                held.lock.release()

    def enough(self, held: Held, key: Key) -> str | None:
        """Return why nothing more is recorded for some sizes; None if something may be."""
        if key not in held.by_key and len(held.by_key) >= MOST_SIZES:
            return f"it is recorded for {MOST_SIZES} sizes"
        if self.credit < PAYS:
            return "it is recorded again and again, and replayed too seldom for more"
        return None

    def spend(self) -> None:
        """Count that something was recorded."""
        self.credit -= PAYS

    def earn(self) -> None:
        """Count that something is replayed."""
        self.credit = min(self.credit + 1, MOST_CAPTURES * PAYS)

    def forget(self) -> None:
        """Release what was recorded."""
        self.held = None

    def refuse(self, why: str) -> None:
        """Keep why code of it is not recorded."""
        self.refused = why
        self.say(why)

    def stop(self, why: str) -> None:
        """Record and replay nothing from now on."""
        self.stopped = True
        self.forget()
        self.say(f"no CUDA graph any more: {why}")

    def excess(self, index: int) -> str | None:
        """Return by how much recordings on a device hold more than they may; None if they don't."""
        allocated = pool_bytes(index)
        whole = torch.cuda.get_device_properties(index).total_memory
        if allocated <= self.share * whole:
            return None
        return f"recordings would hold {allocated >> 20} MiB"

    def say(self, why: str) -> None:
        """Put a line into the compile log, once."""
        if why not in self._said:
            self._said.add(why)
            compile_log.note(compile_log.Record(asked=self.name, ran="inductor", why=why))


def in_turn(
    known: deque[One], fits: Callable[[One], bool], *, backwards: bool = False
) -> One | None:
    """Return the first that fits, beginning behind the one found last; None if none does.

    Layers that share a graph are called one after another, so the next one mostly is the first to
    be asked, however many there are. The one found last is the second: a checkpoint computes it
    anew before its backward.

    Args:
        known: is turned until the one found is its last.
        fits: whether it is this one.
        backwards: begin with the one found last, and go back, as backward does; the one found is
            then the first of ``known``.
    """
    for number in range(len(known)):
        one = known[-1] if backwards else known[0]
        found = fits(one)
        if not found and not number and not backwards and fits(known[-1]):
            return known[-1]
        known.rotate(1 if backwards else -1)
        if found:
            return one
    return None


def drop_stale(held: Held, least: int = MOST_STALE, keep: Recorded | None = None) -> None:
    """Drop what is recorded for parameters that are elsewhere.

    Args:
        held: what is recorded; its lock is held.
        least: how many there have to be, or all stay.
        keep: one that stays in any case.
    """
    made = [x for same in held.by_key.values() for x in same]
    stale = {x for x in made if x is not keep and x.addresses.are_stale()}
    if len(stale) >= least:
        drop(held, stale)


def drop(held: Held, unwanted: AbstractSet[Recorded]) -> None:
    """Release some of what is recorded; what it saved and is alive stays."""
    for key, same in list(held.by_key.items()):
        # One by one, and in place: who looks for one has the same, and who counts holds no lock.
        for one in [x for x in same if x in unwanted]:
            same.remove(one)
        if not same:
            del held.by_key[key]
