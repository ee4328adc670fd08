"""Where a campaign's races are kept: a folder with a file for each, as ``backbay race`` writes it.

A file is whole or not there: it is written beside its place and moved. An earlier file of the same
race stays, for `backbay history`; the newest one counts, while all versions in it are installed.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backbay.campaign.plan import Unit
from backbay.errors import InputError
from backbay.race import Report
from backbay.race.reading import read
from backbay.registry import Environment
from backbay.reporting.machine import is_installed

_UNFIT = re.compile(r"[^\w@.-]+")
_LONGEST = 60


class Results:
    """The races of a folder."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Name the folder; it is made when something is kept.

        Args:
            folder: where the files are.
            environment: whose versions count.
        """
        self.folder = folder
        self._environment = environment

    def find(self, digest: str) -> tuple[str, Report] | None:
        """Return the file of a race that need not be run again, and its report."""
        for path in sorted(self.folder.glob(f"*-{digest}-*.json"), reverse=True):
            try:
                report = read(path)
            except InputError:  # a damaged file costs a race
                continue
            if self._is_of_today(report):
                return path.name, report
        return None

    def prepare(self) -> None:
        """Make the folder, before anything is raced for it.

        Raises:
            InputError: it can't be made or written.
        """
        with self._told(), self._part("prepare") as part:
            part.touch()

    def keep(self, unit: Unit, digest: str, report: Report) -> str:
        """Keep a race, and return the name of its file.

        Raises:
            InputError: the folder can't be written.
        """
        stem = _UNFIT.sub("_", f"{unit.workload}-{unit.mode}-{unit.dtype}")[-_LONGEST:]
        when = re.sub(r"\D", "", report.created)[:14]
        name = f"{stem.lstrip('._-')}-{digest}-{when}.json"
        document = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
        with self._told(), self._part(name) as part:
            with part.open("wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.folder / name)
        return name

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[Path]:
        """Return a file in the folder that is gone afterwards, if it was not moved."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{name}.{secrets.token_hex(4)}.part"
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = error.strerror or error
            raise InputError(f"{self.folder} can't be written: {said}") from error

    def _is_of_today(self, report: Report) -> bool:
        """Whether what it was raced with is what is installed."""
        return not report.partial and is_installed(report.versions, self._environment)


def digest(unit: Unit, device_name: str) -> str:
    """Return what tells a race from all others: what was asked for, as it is now, and where."""
    return hashlib.sha256(f"{unit.digest} {device_name}".encode()).hexdigest()[:12]
