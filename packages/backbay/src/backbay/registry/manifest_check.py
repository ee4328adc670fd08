"""What is wrong with a manifest's file, for its author: more than a registry looks for."""

from pathlib import Path

from backbay.registry._catalog import SPECS
from backbay.registry.discovery import load_toml
from backbay.registry.manifest import Manifest, read
from backbay.registry.options import default_problems
from backbay.registry.spec import BackendSpec, Origin


def check(path: Path) -> Manifest:
    """Return a manifest as a registry reads it, with what it may not or should not say."""
    data = load_toml(str(path))
    if isinstance(data, str):
        return Manifest(problems=[data])
    manifest = read(data, lambda _: Origin(kind="distribution"), declared_by=str(path))
    manifest.problems += [problem for spec in manifest.specs for problem in _problems(spec, path)]
    return manifest


def _problems(spec: BackendSpec, path: Path) -> list[str]:
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415

    where = f"{path}: {spec.name}"
    problems = []
    if spec.loading in {"torch", "removed"}:
        problems.append(f"{where}: only torch's own backends are registers = {spec.loading!r}")
    reserved = [x.name for x in SPECS if x.loading == "torch"]
    if spec.name in reserved:
        problems.append(f"{where}: the name is torch's own, and reserved")
    if spec.options is not None and spec.options != "inductor":
        problems += [f"{where}: {problem}" for x in spec.options for problem in default_problems(x)]
    for line in spec.requires.distributions:
        try:
            Requirement(line)
        except InvalidRequirement as error:
            problems.append(f"{where}: requires.distributions: {str(error).splitlines()[0]}")
    faults = [x for fault in (*spec.broken, *spec.limits) for x in (fault.torch, fault.version)]
    for specifier in (spec.requires.torch, spec.requires.python, *faults):
        try:
            SpecifierSet(specifier or "")
        except InvalidSpecifier as error:
            problems.append(f"{where}: {error}")
    return problems
