"""Matplotlib figures as ``<svg>`` elements that share a page, and follow its theme.

Figures are drawn in stand-in colours, which become ``currentColor`` and the page's own variables;
text stays text, in the page's own font.
"""

import io
import re

from matplotlib.figure import Figure

INK = "#010101"
FAINT = "#020202"
PAPER = "#030303"
COLOURS = 6
"""How many colours the page defines for backends, beside eager's, which is one more."""

_SERIES = "#0400{:02x}"
_VARIABLES = {
    INK: "currentColor",
    FAINT: "var(--line)",
    PAPER: "var(--paper)",
    **{_SERIES.format(number): f"var(--series-{number})" for number in range(COLOURS + 1)},
}


def stand_in(number: int) -> str:
    """Return the stand-in for ``--series-N``."""
    return _SERIES.format(number)


def inline(figure: Figure, prefix: str) -> str:
    """Turn a figure into an ``<svg>`` element that can stand on a page with others."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue().decode()
    text = text[text.index("<svg") :].strip()
    # Matplotlib's own style rule would hold for every element of the page.
    for part in (r"<metadata>.*?</metadata>", r"<style\b.*?</style>", r"<!--.*?-->"):
        text = re.sub(part, "", text, flags=re.DOTALL)
    text = re.sub(
        r"<svg\b[^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 aria-hidden='true'>", text, count=1
    )
    text = text.replace("xlink:href", "href")
    text = _renamed(text, prefix)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r'(?<= )(?:d|x|y|transform)="[^"]*"', _rounded, text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"\n\s*", "\n", text)


def _renamed(svg: str, prefix: str) -> str:
    """Drop the ids that nothing refers to, and make the others this drawing's own."""
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg))
    names = {name for pair in used for name in pair if name}

    def one(match: re.Match[str]) -> str:
        return f' id="{prefix}-{match[1]}"' if match[1] in names else ""

    svg = re.sub(r'\sid="([^"]*)"', one, svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    return svg.replace('href="#', f'href="#{prefix}-')


def _rounded(attribute: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", attribute[0])
