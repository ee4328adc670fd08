"""Finds what repeats in a sequence: the layers of a model, one after the other in its graph.

A run of a topological order that becomes one box makes no cycle, so only what follows directly is
folded.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

LEAST = 3
"""Elements of what repeats: fewer are no layer, and a fold would hide more than it tells."""

MOST = 500
"""Likewise: no layer has so many, and to look for more takes long."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements that are shown one by one, or that repeat those before them."""

    begin: int
    end: int
    times: int = 0
    """How often the elements before it are repeated in it; 0: it repeats nothing."""


def stretches(keys: Sequence[Hashable]) -> Iterator[Stretch]:
    """Part a sequence into what is new and what repeats what stands directly before it.

    Of several ways to fold at one place, the one that folds most is taken; of those, the shortest
    period.

    Args:
        keys: what two elements have in common that count as the same.
    """
    best = _best(keys)
    begin = position = 0
    while position < len(keys):
        period, times = best[position]
        if not times:
            position += 1
            continue
        yield Stretch(begin, position + period)
        begin = position + period * (times + 1)
        yield Stretch(position + period, begin, times)
        position = begin
    if begin < len(keys):
        yield Stretch(begin, len(keys))


def _best(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return for each place the period that folds most there, and how often it is repeated."""
    found, folded = [(0, 0)] * len(keys), [0] * len(keys)
    for period in range(LEAST, min(len(keys) // 2, MOST) + 1):
        same = 0  # elements from here on that are those one period later
        for place in range(len(keys) - period - 1, -1, -1):
            same = same + 1 if keys[place] == keys[place + period] else 0
            times = same // period
            if times * period > folded[place]:
                found[place], folded[place] = (period, times), times * period
    return found
