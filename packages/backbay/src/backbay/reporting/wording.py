"""How reports read: the same words in the terminal and on the page.

Precision follows the interval: digits that a second race would change are not shown.
"""

import functools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backbay.timing.interval import Interval

NOTHING = "–"  # noqa: RUF001 (a dash for a cell without a value, wider than a hyphen)
NEVER = math.inf

_GROUPED_FROM = 1_000
SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_SCIENTIFIC_FROM = 1_000_000


@dataclass(frozen=True)
class Reading:
    """A measured value as text, and its interval, which is empty where there is none."""

    value: str
    interval: str = ""

    def __str__(self) -> str:
        """Join both as one phrase."""
        return f"{self.value} {self.interval}".rstrip()


def milliseconds(value: float | None, interval: Interval | None) -> Reading:
    """Word a time, without its unit: a column's title has it."""
    interval = _telling(interval)
    digits = _digits(value or 0.0, 3)
    if value is not None and interval is not None:
        by_interval = _digits((interval[1] - interval[0]) / 2, 1)
        digits = min(max(by_interval, _digits(value, 2)), _digits(value, 5))
    return _reading(value, interval, digits, "")


def ratio(value: float | None, interval: Interval | None) -> Reading:
    """Word how many times as fast: to a hundredth, or finer where the interval is narrower."""
    interval = _telling(interval)
    digits = max(2, _digits(value or 0.0, 2))
    if interval is not None:
        digits = max(digits, min(3, _digits(interval[1] - interval[0], 1)))
    return _reading(value, interval, digits, "x")


def rough(value: float) -> str:
    """Word a number of which only the size matters: 0.93, 4.1, 41, 4,100."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= _SCIENTIFIC_FROM:
        return f"{value:.0e}".replace("e+0", "e")
    if abs(value) >= _GROUPED_FROM:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{value:.{min(_digits(value, 2), 3)}f}"


def seconds(value: float | None) -> str:
    """Word a time that was measured once, with its unit."""
    if value is None:
        return NOTHING
    return f"{value:.{min(_digits(value, 2), 2)}f} s"


def size(value: float | None) -> str:
    """Word a number of bytes."""
    if value is None:
        return NOTHING
    exponent = min(int(math.log2(max(value, 1)) // 10), len(SIZES) - 1)
    scaled = value / 1024**exponent
    return f"{scaled:.{_digits(scaled, 3) if exponent else 0}f} {SIZES[exponent]}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things in words; where the plural is not ``nouns``, it is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str]) -> str:
    """Return names as one lists them: ``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def calls(count: float | None) -> str:
    """Word a number of calls, which may be ``NEVER``."""
    if count is None:
        return NOTHING
    if count == NEVER:
        return "never"
    rounded = math.ceil(float(f"{count:.2g}"))
    return counted(rounded, "call") if rounded < _SCIENTIFIC_FROM else f"{rough(count)} calls"


def elided(text: str, width: int) -> str:
    """Shorten a name for a plot; its end tells more than its beginning."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def begun(text: str, width: int) -> str:
    """Shorten what tells most at its beginning: a line of code, a list by frequency."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def aligned(values: Sequence[str], *, space: str = " ", point: str = " ") -> list[str]:
    """Pad numbers to one width, so that their decimal points stand in one column."""
    tails = [value[value.find(".") :] if "." in value else "" for value in values]
    longest = max(tails, key=len, default="")
    padded = [
        value
        + (point if longest.startswith(".") and not tail.startswith(".") else "")
        + space * (len(longest) - max(len(tail), longest.startswith(".")))
        for value, tail in zip(values, tails, strict=True)
    ]
    width = max(map(len, padded), default=0)
    return [space * (width - len(value)) + value for value in padded]


def short(line: str) -> str:
    """Word a place as one imports it: relative to the working folder, or to one on the path."""
    for folder in _folders():
        line = line.replace(folder, "")
    return line


@functools.cache
def _folders() -> tuple[str, ...]:
    here = f"{Path.cwd()}{os.sep}"
    roots = {f"{Path(x).resolve()}{os.sep}" for x in sys.path if x not in {"", os.sep}}
    return (here, *sorted(roots - {here}, key=len, reverse=True))


def _reading(value: float | None, interval: Interval | None, digits: int, unit: str) -> Reading:
    if value is None:
        return Reading(NOTHING)
    shown = f"{value:.{digits}f}{unit}"
    if interval is None:
        return Reading(shown)
    return Reading(shown, f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]")


def _telling(interval: Interval | None) -> Interval | None:
    """Leave out an interval that tells nothing: of one sample, or of a thing with itself."""
    if interval is None or interval[0] == interval[1] or not all(map(math.isfinite, interval)):
        return None
    return interval


def _digits(value: float, significant: int) -> int:
    """Return how many decimals show so many significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, significant - 1 - math.floor(math.log10(abs(value))))
