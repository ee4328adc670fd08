"""``backbay stubs``: let type checkers and editors know the backends that are installed."""

from pathlib import Path

import click

from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter
from backbay.cli.files import check_writable
from backbay.cli.parameters import json_option
from backbay.registry.known import KnownBackends
from backbay.registry.stubs import names_here, write_stubs

SCHEMA = "backbay.stubs/1"

_EXAMPLES = """
\b
Examples:
  backbay stubs                     found by mypy, pyright and editors
  backbay stubs --out typings       for pyright alone, in a project's root
  backbay stubs --venv .venv        of another environment, beside its packages
"""


@click.command("stubs", epilog=_EXAMPLES)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write there.  [default: beside this interpreter's packages]")  # fmt: skip
@elsewhere
@json_option
def command(*, registry: KnownBackends, out: Path | None, json_path: Path | None) -> None:
    """Write stubs from which type checkers and editors know the names of the installed backends.

    They are of the backends that are installed now: write them again when that changes.
    """
    check_writable(json_path)
    names = names_here(registry)
    package = write_stubs(registry, out)
    document = {"schema": SCHEMA, "path": str(package), "names": names}
    if not written({**document, "interpreter": interpreter(registry)}, json_path):
        click.echo(f"{package}: {len(names)} names")
