"""Puts names beside the dots of a scatter plot, where they cover neither a dot nor each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from backbay.race.inline import INK

_LINE = 15.0
_GLYPH = 0.56  # the mean width of a letter, of its font's size: the page's font is not known here


def label(
    figure: Figure,
    axes: Axes,
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    *,
    font: float,
    frame: tuple[float, float],
) -> None:
    """Write each name near its point; a line leads to a name that had to move away.

    Args:
        figure: 72 dots an inch, so that its units are those of the drawing.
        axes: where the points are.
        names: one a point.
        points: in the axes' coordinates; its limits are final.
        font: size of the names.
        frame: left and bottom end of where names may be.
    """
    width, height = figure.get_figwidth() * 72, figure.get_figheight() * 72
    dots = [tuple(axes.transData.transform(point)) for point in points]
    room = _Box(*frame, width, height)
    taken = [_Box(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    for name, (x, y) in zip(names, dots, strict=True):
        long = _GLYPH * font * len(name)
        box = next(
            (
                box
                for box in _places(x, y, long)
                if box.within(room) and not any(box.meets(other) for other in taken)
            ),
            next(_places(x, y, long)),
        )
        taken.append(box)
        _leader(figure, (x, y), box)
        figure.text(
            box.left / width,
            (box.bottom + 3.5) / height,
            name,
            fontsize=font,
            verticalalignment="baseline",
        )


@dataclass(frozen=True)
class _Box:
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "_Box") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def within(self, other: "_Box") -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )


def _places(x: float, y: float, width: float) -> Iterator[_Box]:
    """Name places around a point, the nearest first."""
    for step in range(12):
        lift = step * _LINE / 2
        for centre in (y + lift, y - lift):
            for left in (
                x + 9,
                x - 9 - width,
                x - width / 2,
                x + 9 - width / 3,
                x - 9 - 2 * width / 3,
            ):
                yield _Box(left, centre - _LINE / 2, left + width, centre + _LINE / 2)


def _leader(figure: Figure, dot: tuple[float, float], box: _Box) -> None:
    width, height = figure.get_figwidth() * 72, figure.get_figheight() * 72
    near_x = min(max(dot[0], box.left), box.right)
    near_y = min(max(dot[1], box.bottom), box.top)
    if abs(near_x - dot[0]) + abs(near_y - dot[1]) < 12:  # noqa: PLR2004 (the name stands at its dot)
        return
    line = Line2D(
        [dot[0] / width, near_x / width],
        [dot[1] / height, near_y / height],
        color=INK,
        linewidth=0.7,
        alpha=0.6,
    )
    figure.add_artist(line)
