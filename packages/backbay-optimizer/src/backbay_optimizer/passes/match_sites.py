"""The match sites of a graph's rewrites: each can be timed alone, and left out alone.

While a backend times sites they are kept, and where some were found slower they are left alone:
passes ask before each rewrite (``kit.passes.profitable_where``).
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from backbay.graph.region import digest, taken_out
from backbay.kit.passes import profitable_where


@dataclass(frozen=True, kw_only=True)
class MatchSite:
    """Where a rewrite fires; sites that compute the same on inputs of the same kind are one."""

    rewrite: str
    name: str
    """``REWRITE@DIGEST``."""
    region: GraphModule
    """What would be rewritten, as a graph of its own."""


def is_site(name: str) -> bool:
    """Whether what is left out is a match site, and not a rewrite everywhere."""
    return "@" in name


class MatchSites:
    """What is known of match sites."""

    def __init__(self, off: Collection[str] = (), *, keep: bool = False) -> None:
        """Hold what is known.

        Args:
            off: names of sites that are left alone.
            keep: whether to keep the sites that are asked about.
        """
        self.found: dict[str, MatchSite] = {}
        """By name, if kept."""
        self._off = frozenset(off)
        self._keep = keep

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Answer the passes that are run in the block."""
        if not self._keep and not self._off:
            yield
            return
        with profitable_where(self.is_profitable):
            yield

    def is_profitable(self, rewrite: str, nodes: Sequence[Node]) -> bool:
        """Whether a rewrite of these nodes is not known to be slower."""
        region = taken_out(nodes)
        name = f"{rewrite}@{digest(region.graph)}"
        if self._keep:
            self.found.setdefault(name, MatchSite(rewrite=rewrite, name=name, region=region))
        return name not in self._off
