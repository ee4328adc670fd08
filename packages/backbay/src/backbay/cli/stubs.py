"""``backbay stubs``: let type checkers and editors know the backends that are installed."""

from pathlib import Path

import click

from backbay.cli.entry import print_json
from backbay.registry import default_registry
from backbay.registry.stubs import names_here, write_stubs

SCHEMA = "backbay.stubs/1"

_EXAMPLES = """
\b
Examples:
  backbay stubs                     found by mypy, pyright and editors
  backbay stubs --out typings       for pyright alone, in a project's root
"""


@click.command("stubs", epilog=_EXAMPLES)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write there.  [default: beside this interpreter's packages]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(*, out: Path | None, as_json: bool) -> None:
    """Write stubs from which type checkers and editors know the names of the installed backends.

    They are of the backends that are installed now: write them again when that changes.
    """
    names = names_here(default_registry)
    package = write_stubs(default_registry, out)
    if as_json:
        print_json({"schema": SCHEMA, "path": str(package), "names": names})
        return
    click.echo(f"{package}: {len(names)} names")
