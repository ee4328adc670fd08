"""``backbay publish-check``: does a package say what a published backend should say."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from backbay.cli.entry import print_json
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(*, folder: Path, as_json: bool) -> None:
    """Check what a package that publishes a backend says, before it is published.

    DIR is the folder of its pyproject.toml. Files are read, and none of its code is run: its
    entry points, manifest, versions of torch, licence, README, options and tests.

    Exit code 1: something is missing or wrong.
    """
    package = opened(folder)
    found = findings(package)
    if as_json:
        rows = [asdict(x) for x in found]
        print_json({"schema": SCHEMA, "checks": list(CHECKS), "findings": rows})
    else:
        for name in CHECKS:
            mine = [x for x in found if x.check == name]
            click.echo(f"{'wrong' if mine else 'ok':5}  {name}")
            for finding in mine:
                click.echo(plain(f"       {finding.problem}: {finding.remedy}"))
        click.echo(f"{len(found)} to mend" if found else "ready to publish")
    sys.exit(1 if found else 0)
