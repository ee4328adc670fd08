"""A statement as a badge for a README: up to which level nothing failed.

It is a picture of its own, since a service that draws badges would have to be told where the
statement is, and asked each time that somebody reads the README.
"""

from html import escape
from pathlib import Path

from backbay_conformance.record import LEVELS, Statement

LABEL = "backbay conform"
GREEN, AMBER, RED, GREY = "#2d7d32", "#9a5b00", "#b3261e", "#555555"
"""White letters on each have a contrast of more than 4.5 to 1."""
_LETTER, _MARGIN = 7, 6
"""Pixels."""


def says(statement: Statement) -> tuple[str, str]:
    """Return what a badge says, and its colour."""
    tested = f"{statement.profile}, torch {_release(statement)}"
    if statement.partial:
        return f"interrupted ({tested})", GREY
    if not any(x.passed for x in statement.levels):
        return f"nothing was shown ({tested})", GREY
    if statement.badge is None:
        return f"no level without a failure ({tested})", RED
    reached = f"levels 0-{statement.badge} of {len(LEVELS) - 1} ({tested})"
    return reached, GREEN if statement.passed else AMBER


def write_badge(statement: Statement, path: Path) -> None:
    """Write a statement's badge as an SVG."""
    message, colour = says(statement)
    left, right = (len(x) * _LETTER + 2 * _MARGIN for x in (LABEL, message))
    said = escape(f"{LABEL}: {message}")
    texts = "".join(
        f'<text x="{start + _MARGIN}" y="14" textLength="{width - 2 * _MARGIN}">{escape(x)}</text>'
        for start, width, x in ((0, left, LABEL), (left, right, message))
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{said}"><title>{said}</title>'
        f'<rect width="{left}" height="20" fill="{GREY}"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana, sans-serif" font-size="11">{texts}</g></svg>\n',
        encoding="utf-8",
    )


def _release(statement: Statement) -> str:
    return statement.versions["torch"].partition("+")[0]
