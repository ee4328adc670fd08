"""``backbay check-manifest``: is a manifest understood, whole."""

import sys
from pathlib import Path

import click

from backbay.cli.entry import print_json
from backbay.errors import plain
from backbay.registry import BackendSpec, Origin
from backbay.registry._catalog import SPECS
from backbay.registry.discovery import load_toml
from backbay.registry.manifest import Manifest, json_schema, read
from backbay.registry.options import default_problems

SCHEMA = "backbay.check-manifest/1"

_EXAMPLES = """
\b
Examples:
  backbay check-manifest src/my_backend/backends.toml
  backbay check-manifest --schema > manifest.schema.json
"""


@click.command("check-manifest", epilog=_EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--schema", is_flag=True, help="Print the manifest's JSON schema instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(*, paths: tuple[Path, ...], schema: bool, as_json: bool) -> None:
    """Check the manifests at PATHS, which describe a distribution's backends as data.

    Exit code 1: something in one of them is not understood.
    """
    if schema:
        print_json(json_schema())
        return
    if not paths:
        raise click.UsageError("give the manifest's path, or --schema")
    manifests = [(path, check(path)) for path in paths]
    problems = [problem for _, manifest in manifests for problem in manifest.problems]
    if as_json:
        names = [spec.name for _, manifest in manifests for spec in manifest.specs]
        print_json({"schema": SCHEMA, "backends": names, "problems": problems})
    else:
        for path, manifest in manifests:
            _print(path, manifest)
    sys.exit(1 if problems else 0)


def _print(path: Path, manifest: Manifest) -> None:
    for problem in manifest.problems:
        click.echo(plain(problem))
    count = len(manifest.problems)
    found = f"{count} problem{'' if count == 1 else 's'}" if count else "understood"
    names = ", ".join(spec.name for spec in manifest.specs)
    click.echo(f"{path}: {names or 'no backends'}: {found}")


def check(path: Path) -> Manifest:
    """Read a manifest as a registry would, and say more: what it may not or should not say."""
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
