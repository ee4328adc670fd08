"""What is asked for a repro, what comes back, and how long it may take. No torch here."""

from dataclasses import dataclass

import msgspec

from backbay.session import Service, Session
from backbay_conformance.record import Status
from backbay_conformance.requests import SuiteSetup

MOST_LINES = 39
"""What a reader sees whole; more is no repro but a program."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far minimising goes."""

    seconds: float = 60.0
    """For minimising one case; the smallest that was found until then is what is written."""
    nodes: int = 300
    """A larger graph is not minimised: the minifier's work grows faster than the graph."""


class Make(msgspec.Struct, frozen=True, kw_only=True, tag="make"):
    """Make the repro of one failed case."""

    setup: SuiteSetup
    id: str
    status: Status
    seconds: float
    nodes: int


class Made(msgspec.Struct, frozen=True, kw_only=True, tag="made"):
    """A program that shows the failure; its head and the backend are still to be added."""

    imports: tuple[str, ...] = ()
    body: str = ""
    """Empty where there is none."""
    kind: str = ""
    """``graph`` or ``source``: what it was made of."""
    nodes: int = 0
    """Operators in it."""
    nodes_before: int = 0
    note: str = ""
    """Why it is not what one would wish for; empty where it is."""


SERVICE = Service[Make, Made]("backbay_conformance.repro.making:ReproHandler", {Make: Made})
MakingSession = Session[Make, Made]


class Repro(msgspec.Struct, frozen=True, kw_only=True):
    """One failure's repro."""

    case: str
    status: Status
    path: str | None
    """Where it was written; ``null`` where none could be made."""
    kind: str = ""
    """``graph``: a graph that the backend was given. ``source``: the case itself."""
    lines: int = 0
    nodes: int = 0
    nodes_before: int = 0
    """Operators in the graph, and how many there were before it was minimised."""
    shown: bool = False
    """Whether the file was run by itself, and ended with 1."""
    seconds: float = 0.0
    note: str = ""
    """What could not be done, and why."""
