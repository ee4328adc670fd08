"""Read TOML that anybody may have written: manifests, policies, locks, expectations."""

import re
import tomllib
from typing import Any

from backbay.registry.distributions import LARGEST, read_text

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_MOST_DOTS = 64  # in one line


def read_toml(path: str, largest: int = LARGEST) -> dict[str, Any]:
    """Read a TOML file; a byte order mark before it is no part of it.

    Raises:
        OSError: it is absent, no regular file, larger than so many bytes, or not UTF-8.
        ValueError: it is not TOML, or is nested too deeply.
    """
    return parse_toml(read_text(path, largest))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: it is not TOML, or is nested too deeply.
    """
    # The parser's time and memory grow with the square of a dotted key.
    if any(_dots(line) > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_MOST_DOTS} dots: write it on several")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _dots(line: str) -> int:
    return _STRING.sub("", line).count(".") if line.count(".") > _MOST_DOTS else 0
