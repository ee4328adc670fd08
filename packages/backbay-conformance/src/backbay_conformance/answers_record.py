"""What passes between the process that runs a case and the one that judges it. No torch here."""

from typing import Any

import msgspec

from backbay_conformance.record import Status


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend's process is told of one golden that the judge has."""

    draws_random: bool = False
    math_attention: bool = False
    ended: Status | None = None
    """How the case ended there, if there is no golden."""
    reason: str = ""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One result that a backend gave; its tensors are in a file."""

    sample: int
    """Which of a case's samples it belongs to."""
    value: Any
    """See `travelling`."""
