"""Which distributions are installed and what entry points they publish, read by hand.

``importlib.metadata`` answers the same, and imports a great deal for it, where this costs one pass
over the folders of ``sys.path``; listing backends has to be that cheap. Nothing here imports or
runs any distribution's code, and one that is damaged is skipped and named, never fatal.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_METADATA_FOLDER = re.compile(
    r"^(?P<name>.+?)(-(?P<version>[^-]+))?(-py[\d.]+.*)?\.(dist|egg)-info$"
)
_LARGEST_ENTRY_POINTS = 1 << 20  # bytes; a real file has a few kilobytes


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One line of a distribution's ``entry_points.txt``."""

    name: str
    value: str
    """``module:attribute``."""
    distribution: "Distribution"


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution, as its metadata folder names it."""

    name: str
    version: str
    folder: str
    """Its ``.dist-info`` or ``.egg-info`` folder."""


@dataclass(slots=True)
class Installed:
    """Everything that one pass over ``sys.path`` found."""

    distributions: dict[str, Distribution] = field(default_factory=dict)
    """By normalised name; the first on the path is the one that Python would import."""

    problems: list[str] = field(default_factory=list)
    """What could not be read, and why; one line each."""

    def find(self, name: str) -> Distribution | None:
        """Give the distribution of this name, in any spelling, if it is installed."""
        return self.distributions.get(normalise(name))

    def entry_points(self, group: str) -> Iterator[EntryPoint]:
        """Give every entry point of a group, in the order of ``sys.path``."""
        for distribution in self.distributions.values():
            text = self._entry_points_text(distribution)
            for name, value in _section(text, group):
                yield EntryPoint(name, value, distribution)

    def _entry_points_text(self, distribution: Distribution) -> str:
        path = os.path.join(distribution.folder, "entry_points.txt")
        try:
            if os.stat(path).st_size > _LARGEST_ENTRY_POINTS:
                raise OSError("larger than 1 MiB")
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{distribution.name} {distribution.version}: {path}: {error}")
            return ""


def normalise(name: str) -> str:
    """Give a distribution's name in the form that compares equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan(path: Iterable[str] | None = None) -> Installed:
    """Find the distributions on ``path`` (default ``sys.path``)."""
    installed = Installed()
    for folder in dict.fromkeys(sys.path if path is None else path):
        for entry in _metadata_folders(folder or os.curdir):
            distribution = _distribution(entry)
            if distribution is not None:
                installed.distributions.setdefault(normalise(distribution.name), distribution)
    return installed


def _metadata_folders(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if entry.name.endswith("-info")]
            return sorted(found, key=lambda entry: entry.name)  # the same on every file system
    except OSError:  # sys.path holds zip files and folders that are gone
        return []


def _distribution(entry: os.DirEntry[str]) -> Distribution | None:
    match = _METADATA_FOLDER.match(entry.name)
    if match is None:
        return None
    version = match["version"] or _version_in(os.path.join(entry.path, "PKG-INFO"))
    return Distribution(match["name"], version, entry.path)


def _version_in(metadata: str) -> str:
    try:
        with open(metadata, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line.removeprefix("Version:").strip()
    except OSError:
        pass
    return ""


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            inside = line == f"[{group}]"
            continue
        name, separator, value = line.partition("=")
        if inside and separator:
            yield name.strip(), value.partition("[")[0].strip()  # extras say nothing of where it is
