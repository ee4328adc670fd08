"""The expectations file: which failures a backend's authors know of, and why.

One line a case, sorted, so that git merges it::

    "ops/linalg.pinv/complex64" = {status = "upstream", reason = "...", link = "https://..."}

A line may name a ``device`` and, as a specifier, the versions of ``torch`` that it is about. It is
strict both ways: a failure that no line names is a failure, and so is a line that is not true.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Self, get_args

import msgspec
import tomlkit
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from backbay.errors import InputError
from backbay.reference_backends import TORCH_BACKENDS
from backbay.registry import Registry
from backbay.registry.distributions import read_text
from backbay.registry.toml import parse_toml
from backbay_conformance.record import FAILURES, LEVELS, Result, Status

_HEAD = """\
# What `backbay conform` is expected to find: id = {status, reason, link}. A line that is no longer
# true fails the run. `backbay conform NAME --collect` writes this file anew and keeps the reasons.
"""
_LARGEST = 16 << 20
"""Bytes of a file; a line for each case of the full profile has five million."""
EXPLICABLE: frozenset[Status] = FAILURES | {"upstream", "eager_unstable", "not_runnable"}
"""Statuses that a line may name."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line."""

    status: Status
    reason: str
    """Why; never empty."""
    link: str = ""
    """An issue, where there is one."""
    repro: str = ""
    """A program that shows it, where there is one: its path in the repository of the file."""
    device: str | None = None
    """The device type that the line is about; any where None."""
    torch: str | None = None
    """Versions of torch that it is about, as a specifier; any where None."""

    def applies(self, device: str, torch: str) -> bool:
        """Whether the line speaks of this device type and version of torch."""
        if self.device is not None and self.device != device:
            return False
        return self.torch is None or SpecifierSet(self.torch).contains(torch, prereleases=True)

    def __str__(self) -> str:
        """Return the reason, with its link."""
        return f"{self.reason} ({self.link})" if self.link else self.reason


Expectations = Mapping[str, Expectation]


def read(path: Path) -> dict[str, Expectation]:
    """Read a file.

    Raises:
        InputError: there is none, or it cannot be understood; the message names the line's id.
    """
    try:
        return parse(read_text(str(path), _LARGEST), str(path))
    except OSError as error:
        raise InputError(
            f"the expectations file {path} cannot be read: {error.strerror or error}"
        ) from error


def parse(text: str, where: str) -> dict[str, Expectation]:
    """Understand the text of a file; see `read`."""
    try:
        lines = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{where} is not TOML: {error}") from error
    return {case_id: _understood(case_id, line, where) for case_id, line in lines.items()}


def _understood(case_id: str, line: object, where: str) -> Expectation:
    try:
        known = msgspec.convert(line, Expectation)
        SpecifierSet(known.torch or "")
    except msgspec.ValidationError as error:
        raise InputError(f"{where}, {case_id}: {error}") from error
    except InvalidSpecifier as error:
        raise InputError(f"{where}, {case_id}: torch = {error}") from error
    if not known.reason.strip():
        raise InputError(f"{where}, {case_id}: a reason is compulsory")
    if known.status not in EXPLICABLE:
        names = ", ".join(x for x in get_args(Status) if x in EXPLICABLE)
        raise InputError(
            f"{where}, {case_id}: status {known.status!r} needs no line; choose {names}"
        )
    return known


def shipped(backend: str) -> dict[str, Expectation]:
    """Return what is known of torch itself: of every reference backend, and of this one."""
    folder = files("backbay_conformance") / "expectations"
    known: dict[str, Expectation] = {}
    for name in ("upstream", backend):
        file = folder / f"{name}.toml"
        if name.isidentifier() and file.is_file():
            known |= parse(file.read_text(encoding="utf-8"), f"expectations/{name}.toml")
    return known


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a backend here: what its file says, and what ships with the suite."""

    backend: str
    device: str
    """The device type."""
    torch: str
    """Its version."""
    lines: Expectations = field(default_factory=dict)
    """Of the backend's own file, by the case's id."""

    @classmethod
    def of(cls, file: Path | None, *, backend: str, device: str, registry: Registry) -> Self:
        """Read what is expected; without a file, that is what ships with the suite.

        Args:
            file: of the backend's own.
            backend: its name.
            device: as torch spells it.
            registry: says which torch this is.

        Raises:
            InputError: there is no such file, or it cannot be understood.
        """
        return cls(
            backend=backend,
            device=device.partition(":")[0],
            torch=str(registry.environment.torch_build["__version__"]),
            lines={} if file is None else read(file),
        )

    @functools.cached_property
    def _known(self) -> Expectations:
        return {**shipped(self.backend), **self.lines}

    def explained(self, results: Iterable[Result]) -> list[Result]:
        """Return the results, those that a line expects with its reason."""
        return [
            msgspec.structs.replace(x, expected=str(self._known[x.id])) if self._expects(x) else x
            for x in results
        ]

    def _expects(self, result: Result) -> bool:
        line = self._known.get(result.id)
        if line is None or not line.applies(self.device, self.torch):
            return False
        # Where the backend is torch's own, torch's fault is the backend's.
        torchs = self.backend in TORCH_BACKENDS and result.status in FAILURES
        return line.status == result.status or (torchs and line.status == "upstream")

    def stale(
        self, results: Sequence[Result], *, known: Collection[str], levels: Collection[int]
    ) -> list[str]:
        """Return which lines are not true, one sentence each, which names what to do.

        Args:
            results: of the cases that were run.
            known: ids of all cases of the levels that were run.
            levels: their numbers; of others nothing is known.
        """
        got = {x.id: x.status for x in results}
        not_run = {x for number, x in enumerate(LEVELS) if number not in levels}
        wrong = []
        for case_id, line in sorted(self.lines.items()):
            level, status = case_id.partition("/")[0], got.get(case_id, line.status)
            if level in not_run or not line.applies(self.device, self.torch):
                continue
            if case_id not in known:
                wrong.append(f"{case_id}: no case is called so; delete the line")
            elif status != line.status:
                todo = "delete the line" if status == "pass" else "mend it, or change the line"
                wrong.append(f"{case_id}: expected {line.status}, is {status}; {todo}")
        return wrong

    def collected(self, results: Sequence[Result]) -> dict[str, Expectation]:
        """Return the lines that make a run true: of what failed, with the reasons it had before."""
        ran = {x.id for x in results}
        kept = {
            case_id: line
            for case_id, line in self.lines.items()
            if case_id not in ran or not line.applies(self.device, self.torch)
        }
        for result in results:
            if result.status not in FAILURES:
                continue
            line = self.lines.get(result.id)
            if line is None or line.status != result.status:
                reason = result.reason or "no reason was given"
                line = Expectation(status=result.status, reason=reason)
            kept[result.id] = line
        return kept


def text(lines: Expectations) -> str:
    """Return the text of a file, its lines sorted."""
    return _HEAD + "".join(_line(x, lines[x]) for x in sorted(lines))


def _line(case_id: str, line: Expectation) -> str:
    given = {name: getattr(line, name) for name in line.__struct_fields__ if getattr(line, name)}
    inside = tomlkit.inline_table()
    inside.update(given)
    return tomlkit.dumps({case_id: inside})
