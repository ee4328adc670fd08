"""What is kept of every workload: a JSON file each, in a folder, so that calls add up.

An entry holds runs. In a run the arms were timed side by side, round by round: only samples of the
same run pair up, and the runs that hold both of two arms are pooled.
"""

import re
from pathlib import Path

import msgspec

from backbay.errors import InputError
from backbay.timing.gpu_work import GpuWork
from speed.requests import Limited, Status, Verdict

SCHEMA = "backbay.speed/1"


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one run."""

    status: Status
    reason: str = ""
    compile_s: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    work: GpuWork | None = None
    """What the device did during a step, where it was watched."""
    samples_ms: tuple[float, ...] = ()
    """One a round; empty where it was not timed."""
    notes: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that were timed side by side."""

    created: str
    """UTC, ISO 8601. Tells a workload's runs apart: a longer record of the same takes its place."""
    arms: dict[str, Sampled]


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What must be alike for two runs to be added up."""

    device: str
    size: str
    versions: dict[str, str]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one workload."""

    name: str
    where: Where
    about: str = ""
    runs: tuple[Run, ...] = ()
    verdicts: dict[str, Verdict] = {}
    bytes_moved: int | None = None
    flops: int | None = None
    limits: Limited | None = None
    problem: str = ""
    """Why nothing could be measured at all."""
    schema: str = SCHEMA


def merged(old: Entry, new: Entry) -> Entry:
    """Add a later entry's runs and verdicts to an earlier one's; runs begun at once are the same.

    Raises:
        InputError: they are of another machine, size or version: a sum would mean nothing.
    """
    if old.where != new.where:
        raise InputError(
            f"{old.name}: the state folder has runs of {describe(old.where)}, and this is "
            f"{describe(new.where)}: give --state another folder"
        )
    begun = {run.created for run in new.runs}
    runs = (*(run for run in old.runs if run.created not in begun), *new.runs)
    changed: Entry = msgspec.structs.replace(new, runs=runs, verdicts=old.verdicts | new.verdicts)
    return changed


def describe(where: Where) -> str:
    """Write machine, size and versions in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    return f"{where.device}, size {where.size}, {versions}"


class State:
    """The folder of entries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Entry | None:
        """Return an entry, if there is one."""
        path = self._path(name)
        return msgspec.json.decode(path.read_bytes(), type=Entry) if path.exists() else None

    def add(self, entry: Entry) -> Entry:
        """Merge an entry into what is there, keep the sum, and return it."""
        old = self.read(entry.name)
        total = entry if old is None else merged(old, entry)
        path = self._path(entry.name)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(total), indent=1))
        part.replace(path)  # a run that is stopped leaves whole files
        return total

    def _path(self, name: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.json"
