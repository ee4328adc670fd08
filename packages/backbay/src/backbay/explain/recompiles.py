"""Why a function was compiled again, in torch's words, taken apart."""

import json
import re

from backbay.explain.record import ReasonRecord
from backbay.reporting.lines import whole

_VERSION = re.compile(r"^(?P<version>\d+/\d+): ")
_HINT = re.compile(r"\(HINT: (?P<hint>.*?)\)(?=\s*$|\n)", re.DOTALL)
_PLACE = re.compile(r"#\s+(?P<code>.*?)\s*#\s+(?P<file>\S+):(?P<number>\d+) in (?P<function>\S+)")


def parse(payload: str) -> tuple[ReasonRecord, ...]:
    """Take apart what torch wrote: one reason as it is, several as a JSON list."""
    return tuple(map(_reason, _listed(payload)))


def _listed(payload: str) -> list[str]:
    if not payload.startswith("["):
        return [payload]
    try:
        found = json.loads(payload)
    except ValueError:
        return [payload]
    return [str(x) for x in found]


def _reason(text: str) -> ReasonRecord:
    said = text.partition("\nUser stack trace")[0].strip()
    version = _VERSION.match(said)
    hint, place = _HINT.search(said), _PLACE.search(said)
    failed = said[version.end() :] if version else said
    failed = _HINT.sub("", failed).partition("  # ")[0]
    line = f"{whole(place['file'])}:{place['number']}: {place['code']}" if place else ""
    return ReasonRecord(
        version=version["version"] if version else "",
        failed=" ".join(failed.split()),
        line=line,
        hint=" ".join(hint["hint"].split()) if hint else "",
    )
