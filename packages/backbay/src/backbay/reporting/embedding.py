"""Records as JSON inside a page."""

from collections.abc import Sequence

import msgspec


def embedded(report: msgspec.Struct | Sequence[msgspec.Struct]) -> str:
    """Encode for a ``<script>``: no angle bracket, so that no text can end the element."""
    text = msgspec.json.encode(report).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
