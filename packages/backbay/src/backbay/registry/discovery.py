"""Where backends come from: the catalogue, and what the installed distributions publish.

Nothing here imports torch or runs any distribution's code.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backbay.registry.distributions import (
    Distribution,
    EntryPoint,
    Installed,
    normalise,
)
from backbay.registry.environment import Environment
from backbay.registry.spec import MOST_BACKENDS, BackendSpec, Origin, name_problem

ENTRY_POINT_GROUP = "torch_dynamo_backends"
MANIFEST_GROUP = "backbay.backends"
_OPTIONS_APART = frozenset({"backbay", "backbay-adapters", "backbay-optimizer"})
"""Distributions of ours. The catalogue has what a listing shows of their backends, so that it
parses no TOML; their manifests add the options, for whoever asks for one backend."""
_MOST_PROBLEMS = 20  # that are told of one distribution's entry points
_SHOWN = 60  # characters
_LONGEST_VALUE = 300  # characters
_MOST_MANIFESTS = 8  # of one distribution


@dataclass(slots=True)
class Discovered:
    """Everything that claims a backend's name, and what could not be read on the way."""

    specs: list[BackendSpec] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def discover(
    environment: Environment, why_blocked: Callable[[str], str | None] = lambda _: None
) -> Discovered:
    """Find every backend that torch, the catalogue and the installed distributions know.

    Args:
        environment: what is installed.
        why_blocked: says why a distribution is blocked, if it is: its manifest is not even read.
    """
    found = Discovered()
    catalogue = _catalogue(environment)
    manifests = [
        spec
        for entry_point in _published(
            environment.installed, MANIFEST_GROUP, found.problems, _MOST_MANIFESTS
        )
        if why_blocked(entry_point.distribution.name) is None
        and normalise(entry_point.distribution.name) not in _OPTIONS_APART
        for spec in _manifest(entry_point, environment, found.problems)
    ]
    # What a distribution says of itself counts for more, and what it says first.
    said = [*catalogue, *reversed(manifests)]
    described = {(_provider(spec), spec.name): spec for spec in said}
    published = [
        _from_entry_point(entry_point, described)
        for entry_point in _published(
            environment.installed, ENTRY_POINT_GROUP, found.problems, MOST_BACKENDS
        )
    ]
    entered = {(_provider(spec), spec.name) for spec in published}
    found.specs += [spec for spec in catalogue if spec.origin.kind == "torch"]
    found.specs += published
    for spec in [*manifests, *catalogue]:
        if spec.origin.kind == "torch" or (_provider(spec), spec.name) in entered:
            continue
        entered.add((_provider(spec), spec.name))
        if spec.loading == "entry_point" and spec.origin.kind == "distribution":
            found.problems.append(
                f"{spec.origin}: {spec.declared_by} describes {spec.name!r}, of which there is no "
                f"entry point in {ENTRY_POINT_GROUP}"
            )
            continue
        found.specs.append(spec)
    found.problems += environment.installed.problems
    return found


def _published(
    installed: Installed, group: str, problems: list[str], most: int
) -> Iterator[EntryPoint]:
    """Yield the entry points of a group that can be what they say; of the others, say why not."""
    for distribution, lines in itertools.groupby(
        installed.entry_points(group), key=lambda entry_point: entry_point.distribution
    ):
        kept, left_out = _sorted_out(lines, most)
        who = f"{distribution.name} {distribution.version}: [{group}] "
        problems += [who + problem for problem in left_out[:_MOST_PROBLEMS]]
        if len(left_out) > _MOST_PROBLEMS:
            problems.append(f"{who}{len(left_out) - _MOST_PROBLEMS} more are left out")
        yield from kept


def _sorted_out(lines: Iterable[EntryPoint], most: int) -> tuple[list[EntryPoint], list[str]]:
    kept: dict[str, EntryPoint] = {}
    left_out = []
    for entry_point in lines:
        why = _why_left_out(entry_point, kept, most)
        if why is None:
            kept.setdefault(entry_point.name, entry_point)
        else:
            left_out.append(f"{entry_point.name[:_SHOWN]!a} is left out: {why}")
    return list(kept.values()), left_out


def _why_left_out(entry_point: EntryPoint, kept: Mapping[str, EntryPoint], most: int) -> str | None:
    problem = name_problem(entry_point.name)
    if problem is not None:
        return f"the name {problem}"
    value = entry_point.value
    if not value.isprintable() or not 0 < len(value) <= _LONGEST_VALUE:
        return f"{value[:_SHOWN]!a} is not of the form module:attribute"
    first = kept.get(entry_point.name)
    if first is not None and first.value != value:
        return f"it is {first.value} already"  # as Python's own reader, which takes the first
    if first is None and len(kept) >= most:
        return f"there are more than {most}"
    return None


def _provider(spec: BackendSpec) -> str:
    return normalise(spec.origin.distribution or spec.origin.kind)


def _from_entry_point(
    entry_point: EntryPoint, described: Mapping[tuple[str, str], BackendSpec]
) -> BackendSpec:
    """Return an entry point's backend, with what its distribution, or the catalogue, says of it."""
    name, target = entry_point.name, entry_point.value
    origin = _origin(entry_point.distribution, target)
    spec = BackendSpec(name=name, origin=origin, loading="entry_point", target=target)
    known = described.get((_provider(spec), name))
    if known is None:
        return spec
    return replace(known, origin=origin, loading="entry_point", target=target)


def _origin(distribution: Distribution, entry_point: str | None = None) -> Origin:
    return Origin(
        kind="distribution",
        distribution=distribution.name,
        version=distribution.version,
        entry_point=entry_point,
        folder=distribution.folder,
    )


def _catalogue(environment: Environment) -> list[BackendSpec]:
    """Return the catalogue's entries, those of installed distributions as theirs."""
    from backbay.registry._catalog import SPECS  # noqa: PLC0415 (made from catalog.toml)

    version = environment.torch_build.get("__version__")
    torch = Origin(kind="torch", distribution="torch", version=version)
    return [_placed(spec, environment.installed, torch) for spec in SPECS]


def _placed(spec: BackendSpec, installed: Installed, torch: Origin) -> BackendSpec:
    if spec.loading == "torch":
        return replace(spec, origin=torch)
    found = installed.find(spec.origin.distribution) if spec.origin.distribution else None
    # An entry point is what its distribution publishes, not what the catalogue remembers of it.
    if found is None or spec.loading in {"entry_point", "removed"}:
        return spec
    return replace(spec, origin=_origin(found))


def _manifest(
    entry_point: EntryPoint, environment: Environment, problems: list[str]
) -> Iterator[BackendSpec]:
    """Yield what a manifest, published as ``backbay.backends``, says; add what is wrong with it."""
    from backbay.registry.manifest import read  # noqa: PLC0415 (few installations have one)

    distribution = entry_point.distribution
    who = f"{distribution.name} {distribution.version}"
    path = manifest_path(entry_point, environment)
    if path is None:
        problems.append(_no_manifest(entry_point))
        return
    data = load_toml(path)
    if isinstance(data, str):
        problems.append(f"{who}: manifest {entry_point.name}: {data}")
        return
    manifest = read(data, lambda _: _origin(distribution), declared_by=path)
    problems += [f"{who}: {problem}" for problem in manifest.problems]
    for spec in manifest.specs:
        if spec.loading in {"torch", "removed"}:
            problems.append(
                f"{who}: {path}: {spec.name}: only torch's own are registers = {spec.loading!r}"
            )
            continue
        yield spec


def _no_manifest(entry_point: EntryPoint) -> str:
    who = f"{entry_point.distribution.name} {entry_point.distribution.version}"
    why = f"{entry_point.value} is not MODULE:FILE.toml, or is not found"
    return f"{who}: manifest {entry_point.name}: {why}"


def published_manifests(environment: Environment, problems: list[str]) -> Iterator[str]:
    """Yield the files of the manifests that are installed, ours too; add which are not found."""
    for entry_point in _published(environment.installed, MANIFEST_GROUP, problems, _MOST_MANIFESTS):
        path = manifest_path(entry_point, environment)
        if path is None:
            problems.append(_no_manifest(entry_point))
        else:
            yield path


def has_options_apart(spec: BackendSpec) -> bool:
    """Whether a manifest of ours, which discovery does not read, may add options to a spec."""
    return spec.origin.kind == "distribution" and _provider(spec) in _OPTIONS_APART


def with_options(spec: BackendSpec, environment: Environment) -> BackendSpec:
    """Return a spec of ours with the options that the manifest of its distribution declares."""
    declared = (
        found
        for entry_point in environment.installed.entry_points(MANIFEST_GROUP)
        if normalise(entry_point.distribution.name) == _provider(spec)
        for found in _manifest(entry_point, environment, [])
        if found.name == spec.name
    )
    found = next(declared, None)
    if found is None:
        return spec
    return replace(spec, options=found.options, further_options=found.further_options)


def manifest_path(entry_point: EntryPoint, environment: Environment) -> str | None:
    """The file that a ``backbay.backends`` entry point names, without importing its module."""
    module, colon, filename = entry_point.value.partition(":")
    if not colon or not filename.endswith(".toml") or "/" in filename or "\\" in filename:
        return None
    parts = module.strip().split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    beside = os.path.dirname(entry_point.distribution.folder)
    path = os.path.join(beside, *parts, filename.strip())
    if os.path.isfile(path) or os.path.isfile(beside):  # a zip file, which is read as one
        return path
    return _of_editable(parts, filename.strip(), environment)


def _of_editable(parts: list[str], filename: str, environment: Environment) -> str | None:
    # An editable installation keeps its modules elsewhere. Only the finders know where; of a
    # subpackage they would import the parent, so the rest of the way is gone by hand.
    try:
        spec = environment.interpreter.find_spec(parts[0], None)
    except Exception:  # noqa: BLE001 (finders are foreign code; what they do not find is absent)
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = (os.path.join(place, *parts[1:], filename) for place in places)
    return next((path for path in paths if os.path.isfile(path)), None)


def load_toml(path: str) -> dict[str, Any] | str:
    """Read a TOML file; a text where it can't be read says why. Never raises."""
    from backbay.causes import of_file  # noqa: PLC0415 (few installations have one)
    from backbay.registry.manifest import LARGEST  # noqa: PLC0415 (few installations have one)
    from backbay.registry.toml import read_toml  # noqa: PLC0415

    try:
        return read_toml(path, LARGEST)
    except (OSError, ValueError) as error:
        return f"{path}: {of_file(path, error)}"
