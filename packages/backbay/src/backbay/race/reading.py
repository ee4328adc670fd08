"""Reads what ``backbay race --json`` wrote."""

from pathlib import Path

import msgspec

from backbay.causes import of_file
from backbay.errors import InputError
from backbay.race.record import SCHEMA, Report

LARGEST = 256 << 20
"""Bytes of a file."""


def read(path: Path) -> Report:
    """Return the report that a file holds.

    Raises:
        InputError: it can't be read, or holds no report that this version reads.
    """
    try:
        if not path.is_file():
            raise OSError("there is no such file")  # noqa: TRY301 (a pipe would wait)
        if path.stat().st_size > LARGEST:
            raise OSError(f"it is larger than {LARGEST >> 20} MiB")  # noqa: TRY301 (as any other)
        return _decoded(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} does not hold a race: {of_file(path, error)}") from error


def _decoded(document: bytes) -> Report:
    schema = msgspec.json.decode(document, type=_Schema).schema
    if schema != SCHEMA:
        raise ValueError(f"it is of schema {schema!r}; this Backbay reads {SCHEMA}")
    return msgspec.json.decode(document, type=Report)


class _Schema(msgspec.Struct):
    schema: str = "unknown"
