"""What a package that publishes a backend should say, read from its folder; nothing is imported."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from backbay.errors import InputError
from backbay.registry.discovery import load_toml
from backbay.registry.manifest import Manifest
from backbay.registry.manifest_check import check as manifest_check
from backbay.registry.spec import BackendSpec

TORCH_GROUP = "torch_dynamo_backends"
MANIFEST_GROUP = "backbay.backends"
_LOWER = {">=", ">", "==", "===", "~="}
_UPPER = {"<=", "<", "==", "===", "~="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a package does not say, or says wrongly."""

    check: str
    """Which of `CHECKS` found it."""
    problem: str
    """What is wrong, and where."""
    remedy: str
    """What to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package's folder, and what its files declare."""

    folder: Path
    project: dict[str, Any]
    """The table ``project`` of its ``pyproject.toml``."""
    manifests: dict[Path, Manifest] = field(default_factory=dict)
    """Those of its manifests that are there, by path."""

    def table(self, key: str) -> dict[str, Any]:
        """Return a table of the project; empty where there is none."""
        value = self.project.get(key)
        return value if isinstance(value, dict) else {}

    def entry_points(self, group: str) -> dict[str, str]:
        """Return a group of entry points: what each name leads to."""
        lines = self.table("entry-points").get(group)
        return {x: str(y) for x, y in lines.items()} if isinstance(lines, dict) else {}

    def names(self) -> set[str]:
        """Return every name that a manifest describes, aliases included."""
        return {spec.name for manifest in self.manifests.values() for spec in manifest.specs}

    def specs(self) -> Iterator[BackendSpec]:
        """Yield every backend that a manifest describes, once."""
        for manifest in self.manifests.values():
            yield from (spec for spec in manifest.specs if spec.alias_of is None)

    def module(self, name: str) -> Path | None:
        """Return a module's source file, or None."""
        path = Path(*name.split("."))
        if not path.name:
            return None
        roots = (self.folder / "src", self.folder)
        places = [
            root / x for root in roots for x in (path.with_suffix(".py"), path / "__init__.py")
        ]
        return next((x for x in places if x.is_file()), None)

    def readme(self) -> Path | None:
        """Return the file that the project names as its README, or None if it is not there."""
        named = self.project.get("readme")
        named = named.get("file") if isinstance(named, dict) else named
        path = self.folder / named if isinstance(named, str) else None
        return path if path is not None and path.is_file() else None


def opened(folder: Path) -> Package:
    """Read a package's folder.

    Raises:
        InputError: it has no ``pyproject.toml`` with a table ``project``, or that can't be read.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        raise InputError(f"{path} is not there: give the folder of a package")
    data = load_toml(str(path))
    if isinstance(data, str):
        raise InputError(data)
    project = data.get("project")
    if not isinstance(project, dict):
        raise InputError(f"{path} has no table [project], which declares a package")
    package = Package(folder=folder, project=project)
    for target in package.entry_points(MANIFEST_GROUP).values():
        file = _manifest_file(package, target)
        if file is not None and file.is_file():
            package.manifests[file] = manifest_check(file)
    return package


def findings(package: Package) -> list[Finding]:
    """Return what a package should still say, in the order of `CHECKS`."""
    return [
        Finding(check=name, problem=problem, remedy=remedy)
        for name, check in CHECKS.items()
        for problem, remedy in check(package)
    ]


def _manifest_file(package: Package, target: str) -> Path | None:
    """Return the file that an entry point of the group names; it need not be there."""
    module, _, filename = target.partition(":")
    source = package.module(module)
    return source.parent / filename if source is not None else None


def _entry_points(package: Package) -> Iterator[tuple[str, str]]:
    published = package.entry_points(TORCH_GROUP)
    if not published:
        yield (
            "no name for torch.compile is published",
            f'add [project.entry-points.{TORCH_GROUP}] with NAME = "MODULE:ATTRIBUTE"',
        )
    for name, target in published.items():
        module, _, attribute = target.partition(":")
        source = package.module(module)
        if source is None:
            yield f"{name} leads to {module}, which has no file", f"correct {target!r}"
        elif not _defines(source, attribute.partition(".")[0]):
            yield f"{name} leads to {target}, which {source.name} does not define", "define it"


def _defines(source: Path, name: str) -> bool:
    """Whether a module binds a name at its top level, as far as its source shows."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return bool({name, "*", "__getattr__"} & set(_bound(tree.body)))


def _bound(statements: list[Any]) -> Iterator[str]:
    for node in statements:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (x.asname or x.name.partition(".")[0] for x in node.names)
            case ast.Assign() | ast.AnnAssign():
                names = (x for x in ast.walk(node) if isinstance(x, ast.Name))
                yield from (x.id for x in names if isinstance(x.ctx, ast.Store))
            case ast.If() | ast.Try() | ast.With():
                yield from _bound([*node.body, *getattr(node, "orelse", ())])
                yield from _bound([y for x in getattr(node, "handlers", ()) for y in x.body])


def _manifest(package: Package) -> Iterator[tuple[str, str]]:
    targets = package.entry_points(MANIFEST_GROUP)
    if not targets:
        yield (
            "no manifest is published: Backbay knows nothing of the backend but its name",
            f'add [project.entry-points."{MANIFEST_GROUP}"] with manifest = "MODULE:backends.toml"',
        )
    for target in targets.values():
        file = _manifest_file(package, target)
        if file is None or not file.is_file():
            yield f"the manifest {target} is not there", "write it in the folder of that module"
    for path, manifest in package.manifests.items():
        for problem in manifest.problems:
            yield problem, f"correct it; backbay check-manifest {path} says when it is understood"


def _names(package: Package) -> Iterator[tuple[str, str]]:
    published = set(package.entry_points(TORCH_GROUP))
    described = package.names()
    if not package.manifests:
        return
    for name in sorted(published - described):
        yield f"{name} is published, and no manifest describes it", "add a [[backend]] for it"
    for name in sorted(described - published):
        yield (
            f"a manifest describes {name}, which is not published: torch.compile won't know it",
            f"add it to [project.entry-points.{TORCH_GROUP}]",
        )


def _statements(package: Package) -> Iterator[tuple[str, str]]:
    for spec in package.specs():
        if not spec.summary:
            yield f"{spec.name} has no summary", "say in one line what it does"
        for trait in ("training", "dynamic_shapes"):
            if getattr(spec.traits, trait) is None:
                yield (
                    f"{spec.name} does not state traits.{trait}",
                    "try it, and state true or false: what is not stated is unknown",
                )


def _torch(package: Package) -> Iterator[tuple[str, str]]:
    for spec in package.specs():
        missing = _missing_bounds(spec.requires.torch or "")
        if missing:
            yield (
                f"requires.torch of {spec.name} has no {missing} bound",
                'state the versions that you tested, as in torch = ">=2.13,<2.16"',
            )
    for line in _dependencies(package):
        if line.name == "torch" and "lower" in _missing_bounds(str(line.specifier)):
            yield "the dependency on torch has no lower bound", "require the oldest that you tested"


def _missing_bounds(specifier: str) -> str:
    """Return which bounds a specifier lacks, in words; one that can't be read lacks none."""
    try:
        operators = {x.operator for x in SpecifierSet(specifier)}
    except InvalidSpecifier:  # the manifest's own check says so
        return ""
    bounds = {"lower": _LOWER, "upper": _UPPER}
    return " and no ".join(name for name, known in bounds.items() if not operators & known)


def _dependencies(package: Package) -> Iterator[Requirement]:
    lines = package.project.get("dependencies")
    for line in lines if isinstance(lines, list) else ():
        try:
            yield Requirement(str(line))
        except InvalidRequirement:
            continue  # whoever builds the package is told


def _metadata(package: Package) -> Iterator[tuple[str, str]]:
    dynamic = package.project.get("dynamic") or ()
    for key, remedy in {
        "description": "say in one line what the package is",
        "requires-python": 'state the oldest Python that you tested, as in ">=3.11"',
    }.items():
        if not package.project.get(key) and key not in dynamic:
            yield f"project.{key} is not stated", remedy


def _licence(package: Package) -> Iterator[tuple[str, str]]:
    if not isinstance(package.project.get("license"), str):
        yield "project.license is no SPDX expression", 'state one, as in license = "Apache-2.0"'
    texts = [x for x in package.folder.glob("LICEN[CS]E*") if x.is_file()]
    if not texts:
        yield "there is no file LICENSE", "add the licence's text"


def _readme(package: Package) -> Iterator[tuple[str, str]]:
    path = package.readme()
    if path is None:
        yield (
            "project.readme names no file that is there",
            'write README.md, and readme = "README.md"',
        )
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    for name in package.entry_points(TORCH_GROUP):
        if name not in text:
            yield (
                f"{path.name} does not name {name}",
                f'show torch.compile(model, backend="{name}")',
            )


def _options(package: Package) -> Iterator[tuple[str, str]]:
    path = package.readme()
    text = path.read_text(encoding="utf-8", errors="replace") if path is not None else ""
    for spec in package.specs():
        for option in spec.options if isinstance(spec.options, tuple) else ():
            where = f"option {option.name} of {spec.name}"
            if not option.help:
                yield f"{where} has no help", "say in one line what it does"
            if not re.search(rf"[`\"']{re.escape(option.name)}\b", text):  # as code
                yield f"{where} is not in the README", f"describe `{option.name}` there"


def _tests(package: Package) -> Iterator[tuple[str, str]]:
    sources = [*package.folder.glob("tests/**/*.py"), *package.folder.glob("test_*.py")]
    if not any(b"backbay_conformance" in x.read_bytes() for x in sources):
        yield (
            "no test runs the conformance suite",
            "add a test file: from backbay_conformance.test_conformance import test_case",
        )


CHECKS: Mapping[str, Callable[[Package], Iterator[tuple[str, str]]]] = {
    "entry points": _entry_points,
    "manifest": _manifest,
    "names": _names,
    "statements": _statements,
    "torch": _torch,
    "metadata": _metadata,
    "licence": _licence,
    "readme": _readme,
    "options": _options,
    "tests": _tests,
}
"""Each yields problems, and what to do about them."""
