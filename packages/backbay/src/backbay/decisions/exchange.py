"""Decisions in a file that a team keeps under version control."""

from pathlib import Path

import msgspec

from backbay.causes import of_file
from backbay.decisions.decision import Decision
from backbay.errors import InputError

SCHEMA = "backbay.decisions/2"
LARGEST = 64 << 20  # bytes


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """What such a file holds."""

    schema: str = SCHEMA
    decisions: tuple[Decision, ...]


def encoded(decisions: tuple[Decision, ...]) -> bytes:
    """Return decisions as JSON: one order, one line a value, so that a change is a short diff."""
    ordered = tuple(sorted(decisions, key=lambda x: (x.workload, x.step, x.name)))
    data = msgspec.json.encode(Exchanged(decisions=ordered), order="deterministic")
    return msgspec.json.format(data, indent=1) + b"\n"


def read(path: Path) -> tuple[Decision, ...]:
    """Read such a file.

    Raises:
        InputError: it can't be read, or does not hold decisions.
    """
    try:
        if not path.is_file():
            raise OSError("there is no such file")  # noqa: TRY301 (a pipe would wait)
        if path.stat().st_size > LARGEST:
            raise OSError(f"it is larger than {LARGEST >> 20} MiB")  # noqa: TRY301 (as any other)
        found = msgspec.json.decode(path.read_bytes(), type=Exchanged)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} does not hold decisions: {of_file(path, error)}") from error
    if found.schema != SCHEMA:
        raise InputError(f"{path} is of schema {found.schema}; this Backbay reads {SCHEMA}")
    return found.decisions
