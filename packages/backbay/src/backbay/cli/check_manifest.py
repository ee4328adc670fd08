"""``backbay check-manifest``: is a manifest understood, whole."""

import sys
from pathlib import Path

import click

from backbay.cli.entry import print_json
from backbay.errors import plain
from backbay.registry.manifest import Manifest, json_schema
from backbay.registry.manifest_check import check

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
