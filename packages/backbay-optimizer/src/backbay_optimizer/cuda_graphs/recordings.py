"""What is recorded of one of Dynamo's graphs, whether it is used, and why not."""

from dataclasses import dataclass, field
from typing import Protocol

import torch

from backbay import compile_log
from backbay_optimizer.cuda_graphs.capture import pool_bytes

MOST_RECORDINGS = 8
"""Of one of Dynamo's graphs: for other sizes, or parameters elsewhere. More are not made."""
ENOUGH = f"{MOST_RECORDINGS} recordings are made, for other sizes or parameters elsewhere"


class Held(Protocol):
    """What is recorded of a graph."""

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
    held: Held | None = None
    _said: set[str] = field(default_factory=set)

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
