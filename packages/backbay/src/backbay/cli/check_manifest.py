"""``backbay check-manifest``: is a manifest understood, whole."""

import sys
from pathlib import Path

import click

from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter, is_elsewhere, print_header
from backbay.cli.parameters import json_option
from backbay.errors import plain
from backbay.registry.discovery import published_manifests
from backbay.registry.known import KnownBackends
from backbay.registry.manifest import Manifest, json_schema
from backbay.registry.manifest_check import check

SCHEMA = "backbay.check-manifest/1"

_EXAMPLES = """
\b
Examples:
  backbay check-manifest src/my_backend/backends.toml
  backbay check-manifest --venv .venv     those that are installed there
  backbay check-manifest --schema > manifest.schema.json
"""


@click.command("check-manifest", epilog=_EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--schema", is_flag=True, help="Print the manifest's JSON schema instead.")
@elsewhere
@json_option
def command(
    *, registry: KnownBackends, paths: tuple[Path, ...], schema: bool, json_path: Path | None
) -> None:
    """Check the manifests at PATHS, which describe a distribution's backends as data.

    With --python or --venv, and no PATHS: those that the distributions installed there publish.

    Exit code 1: something in one of them is not understood.
    """
    if schema:
        written(json_schema(), json_path or Path("-"))
        return
    reads_installed = is_elsewhere(registry)
    if bool(paths) == reads_installed:
        raise click.UsageError("give the manifest's path, an interpreter, or --schema")
    unread: list[str] = []
    if reads_installed:
        paths = tuple(map(Path, published_manifests(registry.environment, unread)))
    manifests = [(path, check(path)) for path in paths]
    names = [spec.name for _, manifest in manifests for spec in manifest.specs]
    problems = unread + [problem for _, manifest in manifests for problem in manifest.problems]
    document = {"schema": SCHEMA, "backends": names, "problems": problems}
    read = interpreter(registry) if reads_installed else None
    if not written({**document, "interpreter": read}, json_path):
        print_header(registry)
        click.echo("".join(f"{plain(x)}\n" for x in unread), nl=False)
        for path, manifest in manifests:
            _print(path, manifest)
        if reads_installed and not paths:
            click.echo("no distribution there publishes a manifest")
    sys.exit(1 if problems else 0)


def _print(path: Path, manifest: Manifest) -> None:
    for problem in manifest.problems:
        click.echo(plain(problem))
    count = len(manifest.problems)
    found = f"{count} problem{'' if count == 1 else 's'}" if count else "understood"
    names = ", ".join(spec.name for spec in manifest.specs)
    click.echo(f"{path}: {names or 'no backends'}: {found}")
