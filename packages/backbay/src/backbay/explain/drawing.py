"""A graph as an ``<svg>`` element: boxes and edges, no script, no font of its own."""

from html import escape

from backbay.explain.boxes import Box, Picture
from backbay.explain.layout import HEIGHT, layout
from backbay.reporting.wording import elided

_LETTER = 6.6
_MARGIN = 8
_WIDEST = 34
_NARROWEST = 60


def svg(picture: Picture, label: str) -> str:
    """Draw a picture; text from outside is escaped here."""
    boxes = {x.name: x for x in picture.boxes}
    widths = {name: _width(x) for name, x in boxes.items()}
    placed = layout({name: x.inputs for name, x in boxes.items()}, widths)
    edges = "".join(f'<path d="{_path(points)}"/>' for points in placed.edges)
    drawn = "".join(_box(x, placed.centre[name], widths[name]) for name, x in boxes.items())
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    return (
        f'<svg class="graph" role="img" aria-label="{escape(label)}" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}">'
        f'<g class="edges">{edges}</g>{drawn}</svg>'
    )


def _width(box: Box) -> float:
    letters = max(len(elided(box.label, _WIDEST)), len(_begun(box.below)))
    return max(_NARROWEST, letters * _LETTER + 2 * _MARGIN)


def _begun(text: str) -> str:
    """Shorten a list: what comes first is the most frequent."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _box(box: Box, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    return (
        f'<g class="{escape(" ".join(box.look))}" data-node="{escape(box.name)}">'
        f"<title>{escape(box.title)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.1f}" y="{y + 17:.1f}">{escape(elided(box.label, _WIDEST))}</text>'
        f'<text class="small" x="{x:.1f}" y="{y + 32:.1f}">{escape(_begun(box.below))}</text></g>'
    )


def _path(points: tuple[tuple[float, float], ...]) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in rest:
        bend = (to_y - y) / 2
        parts.append(f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)
