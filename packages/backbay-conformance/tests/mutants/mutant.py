"""What a seeded fault is, as data, and the draw that sets a fifth of them aside."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from backbay.registry import CompilerFn
from backbay_conformance.record import LEVELS

Family = Literal[
    "numerics",
    "metadata",
    "autograd",
    "mutation",
    "aliasing",
    "layout",
    "shape",
    "life cycle",
    "state",
    "context",
    "abi",
    "errors",
    "vacuous",
]

Compiled = Callable[..., Callable[..., Any]]
"""Compiles a function with the backend in question; takes torch.compile's further options."""
Demonstration = Callable[[Compiled], Any]
"""Runs something compiled and gives what an onlooker sees; what it raises is seen as well."""

HELD_OUT_SHARE = 0.2
_SEED = "backbay faults, first draw"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A good backend with one fault in it."""

    name: str
    """Also the attribute of `mutants` by which any process finds it."""
    family: Family
    fault: str
    """What it does wrong, in one sentence."""
    level: str
    """The level that must catch it."""
    compiler: CompilerFn
    shown_by: Demonstration | None
    """What comes out otherwise than with the good twin; None where that cannot be."""
    link: str = ""
    """The report of a real backend's bug that it was made after."""
    equivalent: str = ""
    """Why no onlooker can tell it from the good twin; written before any run."""
    held_out: bool = False
    """Whether it is set aside: who writes levels never looks at it."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"{self.name}: there is no level {self.level!r}")
        if (self.shown_by is None) != bool(self.equivalent):
            raise ValueError(f"{self.name}: it is shown, or argued to be equivalent")


def drawn(mutants: Iterable[Mutant]) -> frozenset[str]:
    """The names that are set aside: of each family a fifth, by a draw that anyone can repeat.

    The draw knows names and families only. What rounding leaves over goes to the families that lose
    most by it, so that a fifth of all is set aside.
    """
    families: dict[str, list[str]] = defaultdict(list)
    for mutant in mutants:
        families[mutant.family].append(mutant.name)
    total = round(HELD_OUT_SHARE * sum(map(len, families.values())))
    counts = {x: int(HELD_OUT_SHARE * len(names)) for x, names in families.items()}
    short = sorted(families, key=lambda x: (counts[x] - HELD_OUT_SHARE * len(families[x]), x))
    for family in short[: total - sum(counts.values())]:
        counts[family] += 1
    return frozenset(
        name
        for family, names in families.items()
        for name in sorted(names, key=_lot)[: counts[family]]
    )


def _lot(name: str) -> str:
    return hashlib.sha256(f"{_SEED}: {name}".encode()).hexdigest()
