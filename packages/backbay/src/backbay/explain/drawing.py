"""A graph as an ``<svg>`` element: boxes in layers, no script, no font of its own.

What is computed from what stands below it: layers by the longest path from the inputs, an order
within each by the barycentre of the neighbours, as Sugiyama, Tagawa and Toda have it (1981); an
edge over several layers goes through points in those between, so that it passes beside the boxes
there.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from backbay.explain.boxes import Box, Picture
from backbay.reporting.wording import begun, elided

_LETTER = 6.6
_MARGIN = 8
_WIDEST = 34
_NARROWEST = 60
GAP = 18
ROW = 74
HEIGHT = 40
_POINT = 10
_SWEEPS = 6


def svg(picture: Picture, label: str) -> str:
    """Draw a picture; text from outside is escaped here."""
    boxes = {x.name: x for x in picture.boxes}
    widths = {
        name: max(
            _NARROWEST,
            max(len(elided(x.label, _WIDEST)), len(begun(x.below, _WIDEST))) * _LETTER
            + 2 * _MARGIN,
        )
        for name, x in boxes.items()
    }
    placed = layout({name: x.inputs for name, x in boxes.items()}, widths)
    edges = "".join(f'<path d="{_path(points)}"/>' for points in placed.edges)
    drawn = "".join(_box(x, placed.centre[name], widths[name]) for name, x in boxes.items())
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    role = "group" if any(x.anchor for x in picture.boxes) else "img"
    return (
        f'<svg class="graph" role="{role}" aria-label="{escape(label)}" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}">'
        f'<g class="edges">{edges}</g>{drawn}</svg>'
    )


def _box(box: Box, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    below = begun(box.below, _WIDEST)
    drawn = (
        f'<g class="{escape(" ".join(box.look))}" data-node="{escape(box.name)}">'
        f"<title>{escape(box.title)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.1f}" y="{y + 17:.1f}">{escape(elided(box.label, _WIDEST))}</text>'
        f'<text class="small" x="{x:.1f}" y="{y + 32:.1f}">{escape(below)}</text></g>'
    )
    return f'<a href="#{escape(box.anchor)}">{drawn}</a>' if box.anchor else drawn


def _path(points: tuple[tuple[float, float], ...]) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in rest:
        bend = (to_y - y) / 2
        parts.append(f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where things are, in the drawing's own units."""

    centre: Mapping[str, tuple[float, float]]
    """Name of a box to the middle of its upper side."""
    edges: tuple[tuple[tuple[float, float], ...], ...]
    """Points that each edge goes through, from above."""
    width: float
    height: float


def layout(inputs: Mapping[str, Sequence[str]], widths: Mapping[str, float]) -> Placed:
    """Place boxes.

    Args:
        inputs: name of each box to those that it uses, in topological order; others are ignored.
        widths: of each box.
    """
    if not inputs:
        return Placed({}, (), 0, 0)
    layer = _layers(inputs)
    chains, above, below = _chains(inputs, layer)
    rows = _ordered(layer, above, below)
    x = _abscissas(rows, widths, above)
    left = min(x[name] - widths.get(name, _POINT) / 2 for name in x)
    at = {name: (value - left, layer[name] * ROW) for name, value in x.items()}
    right = max(at[name][0] + widths.get(name, _POINT) / 2 for name in at)
    edges = tuple(_points(chain, at) for chain in chains)
    boxes = {name: at[name] for name in inputs}
    return Placed(boxes, edges, right, len(rows) * ROW - ROW + HEIGHT)


def _layers(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    layer: dict[str, int] = {}
    users: dict[str, list[str]] = {}
    for name, used in inputs.items():
        known = [x for x in used if x in layer]
        layer[name] = 1 + max((layer[x] for x in known), default=-1)
        for x in known:
            users.setdefault(x, []).append(name)
    for name, used in inputs.items():
        if not any(x in inputs for x in used) and name in users:
            layer[name] = min(layer[x] for x in users[name]) - 1  # beside what first needs it
    lowest = min(layer.values())
    return {name: value - lowest for name, value in layer.items()}


def _chains(
    inputs: Mapping[str, Sequence[str]], layer: dict[str, int]
) -> tuple[list[list[str]], dict[str, list[str]], dict[str, list[str]]]:
    """Lead each edge through every layer that it crosses; adds the points to the layers."""
    chains: list[list[str]] = []
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for name, used in inputs.items():
        for source in dict.fromkeys(x for x in used if x in inputs):
            chain = [source]
            for level in range(layer[source] + 1, layer[name]):
                point = f"{source} > {name} @ {level}"
                layer[point] = level
                chain.append(point)
            chain.append(name)
            chains.append(chain)
            for upper, lower in itertools.pairwise(chain):
                below.setdefault(upper, []).append(lower)
                above.setdefault(lower, []).append(upper)
    return chains, above, below


def _ordered(
    layer: Mapping[str, int], above: Mapping[str, list[str]], below: Mapping[str, list[str]]
) -> list[list[str]]:
    rows: list[list[str]] = [[] for _ in range(max(layer.values()) + 1)]
    for name, level in layer.items():
        rows[level].append(name)
    place = {x: n / len(row) for row in rows for n, x in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            row.sort(key=lambda x: _mean([place[y] for y in neighbours.get(x, [x])]))
            place |= {x: n / len(row) for n, x in enumerate(row)}
    return rows


def _abscissas(
    rows: Sequence[Sequence[str]], widths: Mapping[str, float], above: Mapping[str, list[str]]
) -> dict[str, float]:
    """Put each below the middle of what it uses, as far as its neighbours leave room."""
    x: dict[str, float] = {}
    for row in rows:
        wanted = [_mean([x[y] for y in above[name]]) if name in above else None for name in row]
        edge, moved = 0.0, list[float]()
        for name, want in zip(row, wanted, strict=True):
            half = widths.get(name, _POINT) / 2
            x[name] = max(edge + half, want if want is not None else edge + half)
            edge = x[name] + half + GAP
            if want is not None:
                moved.append(x[name] - want)
        shift = _mean(moved) if moved else 0.0
        for name in row:
            x[name] -= shift
    return x


def _points(
    chain: Sequence[str], at: Mapping[str, tuple[float, float]]
) -> tuple[tuple[float, float], ...]:
    first, *between, last = chain
    start = (at[first][0], at[first][1] + HEIGHT)
    middle = [(at[x][0], at[x][1] + HEIGHT / 2) for x in between]
    return (start, *middle, at[last])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
