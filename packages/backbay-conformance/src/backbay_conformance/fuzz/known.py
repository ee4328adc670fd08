r"""Finds that are known already; each names the issue where it is, or it is not ignored. No torch.

``known.toml``::

    [[find]]
    status = "fail_mutation"                 # may be left out
    reason = "was changed by the run"        # a regular expression; may be left out
    program = 'unfold\(\d+, 1, 2\)'           # likewise, over the program's source
    link = "https://github.com/pytorch/pytorch/issues/198102"
"""

import functools
import re
import tomllib
from pathlib import Path

import msgspec

from backbay.causes import of_file
from backbay.errors import InputError
from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.source import source
from backbay_conformance.record import Result, Status

SHIPPED = Path(__file__).with_name("known.toml")
_LINK = re.compile(r"https://\S+/\d+")


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One known find."""

    link: str
    """The issue; compulsory."""
    status: Status | None = None
    reason: str = ""
    """Regular expression over the reason."""
    program: str = ""
    """Regular expression over the source of the minimised program."""
    note: str = ""

    def covers(self, result: Result, program: Program) -> bool:
        """Whether a find is this one."""
        # Of an upstream find, the last reference backend that was tried failed as the backend did.
        status = (
            [*result.reference_backends.values()][-1]
            if result.status == "upstream"
            else result.status
        )
        if self.status not in {None, status}:
            return False
        found = re.search(self.reason, result.reason)
        return found is not None and re.search(self.program, source(program)) is not None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    find: tuple[Known, ...] = ()


def read(path: Path = SHIPPED) -> tuple[Known, ...]:
    """Read the known finds.

    Raises:
        InputError: the file cannot be understood, a find has no link or matches everything.
    """
    try:
        file = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {of_file(path, error)}") from error
    for number, known in enumerate(file.find, 1):
        _check(known, f"{path}: find {number}")
    return file.find


def _check(known: Known, where: str) -> None:
    if not _LINK.fullmatch(known.link):
        raise InputError(f"{where} names no issue: its link is {known.link!r}")
    if not (known.reason or known.program):
        raise InputError(f"{where} would cover everything: it needs a reason or a program")
    for pattern in (known.reason, known.program):
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{where}: {pattern!r} is no regular expression: {error}") from error


@functools.cache
def shipped() -> tuple[Known, ...]:
    """Return the finds that are known to Backbay."""
    return read()
