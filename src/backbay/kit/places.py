"""The places of a graph where a rewrite fires: each can be timed alone, and left out alone.

A pass whose gain depends on shapes asks ``context.pays`` of each place before it rewrites it. As a
rule the answer is yes, and costs nothing; while a backend times places they are kept, and where
some were found slower they are left alone.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from backbay.graph.region import digest, taken_out


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rewrite fires; places that compute the same on inputs of the same kind are one."""

    rewrite: str
    name: str
    """``REWRITE@DIGEST``."""
    region: GraphModule
    """What would be rewritten, as a graph of its own."""


class Places:
    """What is asked of places, and answered."""

    def __init__(self, off: Collection[str] = (), *, keep: bool = False) -> None:
        """Say what is known.

        Args:
            off: names of places that are left alone.
            keep: whether to keep what is asked.
        """
        self.found: dict[str, Place] = {}
        """By name, if kept."""
        self._off = frozenset(off)
        self._keep = keep

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Answer the passes that are run in this context."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def pays(self, rewrite: str, nodes: Sequence[Node]) -> bool:
        """Tell whether a rewrite of these nodes is not known to be slower."""
        if not self._keep and not self._off:
            return True
        region = taken_out(nodes)
        name = f"{rewrite}@{digest(region.graph)}"
        if self._keep:
            self.found.setdefault(name, Place(rewrite=rewrite, name=name, region=region))
        return name not in self._off


_current: ContextVar[Places] = ContextVar("_current", default=Places())  # noqa: B039 (it keeps nothing)


def current_places() -> Places:
    """Give what answers here."""
    return _current.get()
