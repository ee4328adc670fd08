"""What the grammar draws with, and the table of its kinds."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from backbay_conformance.fuzz.scope import Proposal, Scope, Value

T = TypeVar("T")
Wanted = Callable[[Value], bool]


class Chooser:
    """Draws values and numbers; all randomness of a program comes from here."""

    def __init__(
        self,
        rng: random.Random,
        scope: Scope,
        *,
        floats: Sequence[torch.dtype],
        reads_bits: bool,
    ) -> None:
        self.rng = rng
        self.scope = scope
        self.floats = floats
        """What is cast to."""
        self.reads_bits = reads_bits
        """Whether the bits of floats are read, which leaves the program without float64 truth."""

    @property
    def train(self) -> bool:
        """Whether the program is trained: then kinks and poles are as wrong as wrong numbers."""
        return self.scope.train

    def chance(self, share: float) -> bool:
        """Draw True with a probability."""
        return self.rng.random() < share

    def one(self, things: Sequence[T]) -> T:
        """Draw one of several."""
        return things[self.rng.randrange(len(things))]

    def value(self, wanted: Wanted = lambda _: True) -> Value | None:
        """Draw a value, the later ones more often."""
        found = [x for x in self.scope.values if wanted(x)]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def beside(self, value: Value, wanted: Wanted = lambda _: True) -> Value | None:
        """Draw a value whose shape goes with another's."""
        return self.value(lambda x: wanted(x) and goes_with(x, value))

    def dim(self, value: Value, *, least: int = 0) -> int | None:
        """Draw a dimension that has at least so many elements at every size."""
        found = [x for x in range(value.dim) if value.least(x) >= least]
        return self.one(found) if found else None

    def number(self) -> float:
        """Draw a factor that is no round number."""
        return self.one((0.37, -0.61, 1.13, 0.83, -1.29, 0.5))


def goes_with(left: Value, right: Value) -> bool:
    """Whether two values broadcast at every size."""
    return all(
        a == b or 1 in {a, b}
        for one, other in zip(left.shapes, right.shapes, strict=True)
        for a, b in zip(one[::-1], other[::-1], strict=False)
    )


def fits_into(small: Value, shapes: Sequence[torch.Size]) -> bool:
    """Whether a value can be written into memory of some shapes."""
    return all(
        len(shape) <= len(into)
        and all(a in {b, 1} for a, b in zip(shape[::-1], into[::-1], strict=False))
        for shape, into in zip(small.shapes, shapes, strict=True)
    )


Draw = Callable[[Chooser], Proposal | None]


@dataclass(frozen=True)
class Kind:
    """One kind of statement."""

    name: str
    draw: Draw
    weight: int


KINDS: dict[str, Kind] = {}
"""All of them, by name; the modules of this package fill it."""


def kind(weight: int = 4) -> Callable[[Draw], Draw]:
    """Take a function as a kind of statement, drawn so often against the others."""

    def add(draw: Draw) -> Draw:
        name = draw.__name__.strip("_")
        if name in KINDS:
            raise ValueError(f"two kinds are called {name}")
        KINDS[name] = Kind(name, draw, weight)
        return draw

    return add
