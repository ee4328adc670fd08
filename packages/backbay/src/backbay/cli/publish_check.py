"""``backbay publish-check``: does a package say what a published backend should say."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from backbay.cli.document import written
from backbay.cli.parameters import json_option
from backbay.errors import plain
from backbay.publishing import CHECKS, findings, opened

SCHEMA = "backbay.publish-check/1"

_EXAMPLES = """
\b
Examples:
  backbay publish-check
  backbay publish-check path/to/package --json
"""


@click.command("publish-check", epilog=_EXAMPLES)
@click.argument("folder", metavar="[DIR]", default=".",
                type=click.Path(file_okay=False, path_type=Path))  # fmt: skip
@json_option
def command(*, folder: Path, json_path: Path | None) -> None:
    """Check what a package that publishes a backend says, before it is published.

    DIR is the folder of its pyproject.toml. Files are read, and none of its code is run: its
    entry points, manifest, versions of torch, licence, README, options and tests.

    Exit code 1: something is missing or wrong.
    """
    package = opened(folder)
    found = findings(package)
    rows = [asdict(x) for x in found]
    document = {"schema": SCHEMA, "checks": list(CHECKS), "findings": rows}
    if not written(document, json_path):
        for name in CHECKS:
            mine = [x for x in found if x.check == name]
            click.echo(f"{'wrong' if mine else 'ok':5}  {name}")
            for finding in mine:
                click.echo(f"       {plain(f'{finding.problem}: {finding.remedy}')}")
        click.echo(f"{len(found)} to mend" if found else "ready to publish")
    sys.exit(1 if found else 0)
