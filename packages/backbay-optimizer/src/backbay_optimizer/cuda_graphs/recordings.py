"""What is recorded of one of Dynamo's graphs, whether it is used, and why not."""

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

import torch

from backbay import compile_log
from backbay_optimizer.cuda_graphs.capture import pool_bytes
from backbay_optimizer.cuda_graphs.places import Places

MOST_SIZES = 8
"""That one of Dynamo's graphs is recorded for."""
MOST_RECORDINGS = 64
"""Of one, in all: it may be a layer's, and be called with the parameters of many layers."""
MOST_LEFT = 8
"""Recordings of one, whose parameters are elsewhere now, that are kept: they may come back."""
MOST_DROPS = 4
"""How often as many are dropped, before parameters are taken to stay nowhere."""
Key = TypeVar("Key", bound=Hashable)


class Placed(Protocol):
    """A recording, or a pair of them."""

    @property
    def places(self) -> Places:
        """Where the inputs are that it reads where they are."""


PlacedOne = TypeVar("PlacedOne", bound=Placed)


class Held(Protocol):
    """What is recorded of a graph."""

    @property
    def number(self) -> int:
        """How many recordings there are; a forward and its backward are one."""

    def release_left(self) -> None:
        """Drop what is recorded for parameters that are elsewhere, unless it is being used."""


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
    drops: int = 0
    """How often recordings were dropped, since their parameters were elsewhere."""
    held: Held | None = None
    _all: ClassVar["weakref.WeakSet[Recordings]"] = weakref.WeakSet()
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Make it known."""
        self._all.add(self)

    @classmethod
    def release_left(cls) -> None:
        """Drop what any graph has recorded for parameters that are elsewhere, or are no more."""
        for held in [x.held for x in cls._all]:
            if held is not None:
                held.release_left()

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

    def enough(self, made: dict[Key, list[PlacedOne]], key: Key) -> str | None:
        """Return why nothing more is recorded; None if something may be.

        Args:
            made: what is recorded, by its sizes. Of what may never fit again some is dropped.
            key: the sizes of what would be recorded.
        """
        if sum(x.places.is_left() for same in made.values() for x in same) >= MOST_LEFT:
            if self.drops == MOST_DROPS:
                return "parameters are elsewhere again and again"
            self.drops += 1
            drop_left(made)
        if key not in made and len(made) >= MOST_SIZES:
            return f"it is recorded for {MOST_SIZES} sizes"
        if sum(map(len, made.values())) >= MOST_RECORDINGS:
            return f"{MOST_RECORDINGS} recordings of it are made"
        return None

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


def drop_left(made: dict[Key, list[PlacedOne]]) -> None:
    """Drop recordings whose parameters are elsewhere."""
    for key, same in list(made.items()):
        same[:] = [x for x in same if not x.places.is_left()]
        if not same:
            del made[key]
