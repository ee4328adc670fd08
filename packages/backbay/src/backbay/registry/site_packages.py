"""What is installed in the folders of an interpreter that is not this one: its path, its modules.

Files are read and none is run. That is less than Python does when it starts, which runs lines of
``.pth`` files and with them the finders of editable installations. Of such a finder the text is
read: most have a table of modules and their places in it.
"""

import ast
import functools
import itertools
import json
import os
import zipimport
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

from backbay.registry.distributions import Distribution, read_text, scan
from backbay.registry.environment import OnlyAnImportTells

_LARGEST_RECORD = 32 << 20
"""Bytes; torch's, with its headers, has two million."""


def search_path(folders: Iterable[str]) -> list[str]:
    """Return site folders, each followed by those that ``.pth`` files in it name."""
    found: dict[str, None] = {}
    for folder in map(Path, folders):
        if folder.is_dir():
            found.update(dict.fromkeys([str(folder), *_named_in_pth_files(folder)]))
    return list(found)


def _named_in_pth_files(folder: Path) -> Iterator[str]:
    for file in sorted(x for x in folder.glob("*.pth") if not x.name.startswith(".")):
        for line in _lines(file):
            if not line.strip() or line.startswith(("#", "import ", "import\t")):
                continue
            place = os.path.abspath(folder / line.rstrip())  # noqa: PTH100 (links stay)
            if Path(place).exists():
                yield place


def _lines(path: Path, largest: int = 1 << 20) -> list[str]:
    try:
        return read_text(str(path), largest).splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class ModuleFiles:
    """The modules that another interpreter would find."""

    path: Sequence[str]
    """Its ``sys.path``."""
    suffixes: Sequence[str]
    """Ends of files that are modules to it, as ``.cpython-312-x86_64-linux-gnu.so``."""

    def find_spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find a module in these folders, or anywhere.

        Raises:
            OnlyAnImportTells: no file of it is found, and there is an editable installation whose
                modules only its own code finds.
        """
        found = self._in_folders(name, self.path if path is None else path)
        if found is not None and found.loader is not None:
            return found
        if name in self._editable.places:
            return _spec_at(name, Path(self._editable.places[name]), self.suffixes)
        if any(x.startswith(f"{name}.") for x in self._editable.places):
            return _namespace(name, [])
        if path is None and self._editable.untold:
            raise OnlyAnImportTells(f"{name}: {', '.join(self._editable.untold)}")
        return found  # folders without an ``__init__.py``, or nothing

    def _in_folders(self, name: str, folders: Sequence[str]) -> ModuleSpec | None:
        portions: list[str] = []
        for folder in folders:
            spec = self._in_folder(name, folder)
            if spec is not None and spec.loader is not None:
                return spec
            portions += (spec.submodule_search_locations or ()) if spec is not None else ()
        return _namespace(name, portions) if portions else None

    def _in_folder(self, name: str, folder: str) -> ModuleSpec | None:
        if not Path(folder).is_file():
            return FileFinder(folder, (SourceFileLoader, list(self.suffixes))).find_spec(name)
        try:
            return zipimport.zipimporter(folder).find_spec(name)
        except zipimport.ZipImportError:
            return None

    @functools.cached_property
    def _editable(self) -> "_EditableModules":
        return _EditableModules.of(scan(self.path).distributions.values())


@dataclass(frozen=True)
class _EditableModules:
    """What the finders of editable installations say."""

    places: dict[str, str]
    """Modules, each with its file or its package's folder."""
    untold: tuple[str, ...]
    """Distributions whose finders have no such table."""

    @classmethod
    def of(cls, distributions: Iterable[Distribution]) -> "_EditableModules":
        places: dict[str, str] = {}
        untold = []
        for distribution in distributions:
            if not _is_editable(distribution):
                continue
            finders = [*_finders(distribution)]
            told = {name: place for x in finders for name, place in _places_in(x)}
            places |= told
            if finders and not told:
                untold.append(distribution.name)
        return cls(places, tuple(untold))


def _is_editable(distribution: Distribution) -> bool:
    try:
        said = json.loads(read_text(str(Path(distribution.folder, "direct_url.json"))))
        return said["dir_info"]["editable"] is True
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _finders(distribution: Distribution) -> Iterator[Path]:
    """Yield the modules that an editable installation put into the site folder itself."""
    folder = Path(distribution.folder)
    names = (x.partition(",")[0] for x in _lines(folder / "RECORD", _LARGEST_RECORD))
    files = (folder.parent / x for x in names if x.endswith(".py") and "/" not in x)
    yield from (x for x in files if x.is_file())


def _places_in(finder: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules and places that a finder's text pairs: in a table, or as arguments."""
    try:
        tree = ast.parse(read_text(str(finder)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        pairs: Iterable[tuple[ast.expr | None, ast.expr]] = ()
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".map_module"):
            pairs = itertools.pairwise(node.args)  # of `editables`
        for left, right in pairs:
            name, place = (x.value if isinstance(x, ast.Constant) else None for x in (left, right))
            if not isinstance(name, str) or not isinstance(place, str):
                continue
            if all(x.isidentifier() for x in name.split(".")) and Path(place).is_absolute():
                yield name, place


def _spec_at(name: str, place: Path, suffixes: Sequence[str]) -> ModuleSpec | None:
    """Return what is at a place: a package's folder, a file, or a file without its suffix."""
    beside = (Path(f"{place}{suffix}") for suffix in suffixes)
    file = next((x for x in (place / "__init__.py", place, *beside) if x.is_file()), None)
    if file is None:
        return None
    folders = [str(file.parent)] if file.stem == "__init__" else None
    return spec_from_file_location(
        name, file, loader=SourceFileLoader(name, str(file)), submodule_search_locations=folders
    )


def _namespace(name: str, portions: list[str]) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec
