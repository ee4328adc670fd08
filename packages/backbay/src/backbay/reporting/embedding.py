"""Records as JSON inside a page."""

from collections.abc import Sequence

import msgspec

from backbay.errors import hidden


def embedded(report: msgspec.Struct | Sequence[msgspec.Struct]) -> str:
    """Encode for a ``<script>``: no angle bracket ends the element, and nothing in it is unseen."""
    text = msgspec.json.encode(report).decode()
    for character in {x for x in set(text) if x in "<>&" or hidden(x)}:
        units = character.encode("utf-16-be").hex(" ", 2).split()
        text = text.replace(character, "".join(f"\\u{unit}" for unit in units))
    return text
