"""Which distributions are installed and what entry points they publish, read by hand.

``importlib.metadata`` answers the same, and imports a great deal for it, where this costs one pass
over the folders of ``sys.path``; listing backends has to be that cheap. Nothing here imports or
runs any distribution's code, and one that is damaged is skipped and named, never fatal.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_USUAL_FOLDER = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)-([A-Za-z0-9.!+_~*]+)\.dist-info"
)
_METADATA_FOLDER = re.compile(
    r"^(?P<name>.+?)(-(?P<version>[^-]+))?(-py[\d.]+.*)?\.(dist|egg)-info$", re.DOTALL
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508
_SEPARATORS = re.compile(r"[-_.]+")
_REQUIRED_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")
_VERSION = re.compile(r"[A-Za-z0-9.!+_~*]*")
_ENDINGS = ("-info", "EGG-INFO")
LARGEST = 1 << 20
"""Bytes of a file that a distribution publishes; a real one has a few kilobytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors put it before UTF-8
_CHUNK = 1 << 14
"""Bytes; a buffer of the largest size, for each file, would be most of a scan's cost."""


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
    """Its words joined by hyphens; its folder has underscores, whatever it calls itself."""
    version: str
    folder: str
    """Its ``.dist-info`` or ``.egg-info`` folder."""


@dataclass(slots=True)
class Installed:
    """Everything that one pass over ``sys.path`` found."""

    distributions: dict[str, Distribution] = field(default_factory=dict)
    """By normalised name; the first on the path is the one that Python would import."""

    skipped: list[str] = field(default_factory=list)
    """Metadata folders that were left out, and why; one line each."""

    _files: "_EntryPointFiles | None" = None

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, and why; one line each."""
        return (*self.skipped, *self._read().problems)

    def find(self, name: str) -> Distribution | None:
        """Return the distribution of this name, in any spelling, if it is installed."""
        return self.distributions.get(normalise(name))

    def entry_points(self, group: str) -> Iterator[EntryPoint]:
        """Yield every entry point of a group, in the order of ``sys.path``."""
        for distribution, text in self._read().texts:
            if group not in text:
                continue
            for name, value in _section(text, group):
                yield EntryPoint(name, value, distribution)

    def _read(self) -> "_EntryPointFiles":
        if self._files is None:  # two threads may both read: either puts down the whole
            self._files = _EntryPointFiles.of(self.distributions.values())
        return self._files


@dataclass(frozen=True, slots=True)
class _EntryPointFiles:
    """What the distributions' ``entry_points.txt`` hold."""

    texts: tuple[tuple[Distribution, str], ...]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, distributions: Iterable[Distribution]) -> "_EntryPointFiles":
        texts, problems = [], []
        for distribution in distributions:
            try:
                text = _published_by(distribution)
            except OSError as error:
                where = f"{distribution.name} {distribution.version}: {error.filename}"
                problems.append(f"{where}: {error.strerror}")
                continue
            if text is not None:
                texts.append((distribution, text))
        return cls(tuple(texts), tuple(problems))


def _published_by(distribution: Distribution) -> str | None:
    try:  # not os.path.join(): it checks, and costs
        return read_text(f"{distribution.folder}{os.sep}entry_points.txt")
    except FileNotFoundError:  # or its folder is a file, as old installers left it
        return None


def read_text(path: str, largest: int = LARGEST) -> str:
    """Read a file that a distribution, or whoever wrote its folder, may have made to do harm.

    Its path may lead through a zip file, as one on ``sys.path``.

    Raises:
        OSError: it is absent, no regular file, larger than so many bytes, or not UTF-8.
    """
    # Not open(): of a thousand small files, its layers and its checks are most of the cost.
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe must not wait
    except NotADirectoryError:
        from backbay.registry.zipped import read_inside  # noqa: PLC0415 (few are in a zip file)

        return read_inside(path, largest)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no file", path)
        data = chunk = os.read(handle, _CHUNK)
        while len(chunk) == _CHUNK and len(data) <= largest:
            chunk = os.read(handle, _CHUNK)
            data += chunk
    finally:
        os.close(handle)
    if len(data) > largest:
        raise OSError(errno.EINVAL, f"it is larger than {largest >> 10} KiB", path)
    try:
        return data.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, f"it is not UTF-8: {error}", path) from error


def normalise(name: str) -> str:
    """Return a distribution's name in the form that compares equal (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def is_distribution_name(name: str) -> bool:
    """Whether a distribution can have this name (PEP 508)."""
    return _NAME.fullmatch(name) is not None


def required_name(requirement: str) -> str:
    """Return the distribution that a PEP 508 requirement names; nothing if it names none."""
    match = _REQUIRED_NAME.match(requirement)
    return match[1] if match else ""


def scan(path: Iterable[str] | None = None) -> Installed:
    """Find the distributions on ``path`` (default ``sys.path``)."""
    installed = Installed()
    folders = dict.fromkeys(sys.path if path is None else path)
    for folder in (x for x in folders if isinstance(x, str)):  # as Python does on sys.path
        try:
            found = _metadata_folders(folder)
        except (FileNotFoundError, ValueError):  # a folder that is gone, or no path at all
            continue
        except OSError as error:
            installed.skipped.append(f"{folder!a} on sys.path cannot be read: {error.strerror}")
            continue
        for entry in found:
            distribution = _distribution(*entry)
            if isinstance(distribution, str):
                installed.skipped.append(distribution)
            elif distribution is not None:
                installed.distributions.setdefault(normalise(distribution.name), distribution)
    return installed


def _metadata_folders(folder: str) -> list[tuple[str, str]]:
    """Return name and path of each, sorted: a folder has no order of its own.

    That of an egg, be it a folder or a zip file, is named as the egg is.

    Raises:
        OSError: the folder can't be read.
        ValueError: it can't be a path.
    """
    try:
        with os.scandir(folder or os.curdir) as entries:
            found = [(x.name, x.path) for x in entries if x.name.endswith(_ENDINGS)]
    except NotADirectoryError:
        if not os.path.isfile(folder):  # a pipe; or a folder in a zip file, where Python looks for
            return []  # modules, and nobody for distributions
        from backbay.registry.zipped import top_folders  # noqa: PLC0415 (few paths have a zip file)

        names = (name for name in top_folders(folder) if name.endswith(_ENDINGS))
        found = [(name, f"{folder}{os.sep}{name}") for name in names]
    if folder.endswith(".egg"):
        egg = f"{os.path.basename(folder)}-info"
        found = [(egg if name == "EGG-INFO" else name, path) for name, path in found]
    return sorted(found)


def _distribution(name: str, path: str) -> Distribution | str | None:
    """Return the distribution of a metadata folder; a text says why it is left out."""
    usual = _USUAL_FOLDER.fullmatch(name)  # all that follows, in one match: a third of a scan
    if usual is not None:
        return Distribution(usual[1].replace("_", "-"), usual[2], path)
    match = _METADATA_FOLDER.match(name)
    if match is None:
        return None
    version = match["version"] or _version_in(os.path.join(path, "PKG-INFO"))
    # Nothing could block or pin such a name, and no terminal could be trusted to show it.
    if not is_distribution_name(match["name"]) or _VERSION.fullmatch(version) is None:
        return f"{path!a} is left out: no distribution has such a name or version"
    return Distribution(match["name"].replace("_", "-"), version, path)


def _version_in(metadata: str) -> str:
    try:
        text = read_text(metadata)
    except OSError:
        return ""
    lines = (line for line in text.splitlines() if line.startswith("Version:"))
    return next(lines, "Version:").removeprefix("Version:").strip()


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
            target = value.partition("[")[0]  # extras say nothing of where it is
            yield name.strip(), ":".join(part.strip() for part in target.split(":"))
