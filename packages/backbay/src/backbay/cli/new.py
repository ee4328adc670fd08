"""``backbay new``: a package of one's own, with a backend that works."""

import shlex
from pathlib import Path

import click

from backbay.cli.document import written
from backbay.cli.files import check_writable
from backbay.cli.parameters import json_option
from backbay.new import LICENSES, author_of, package_of, write
from backbay.registry import default_registry

SCHEMA = "backbay.new/1"

_EXAMPLES = """
\b
Examples:
  backbay new acme-fast
  backbay new acme-fast --author "Ada Lovelace <ada@example.org>" --license MIT
  backbay new acme.fast --directory work/fast
"""


@click.command("new", epilog=_EXAMPLES)
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR",
              help="The folder to make.  [default: NAME, here]")  # fmt: skip
@click.option("--author", help="Name, or 'Name <address>'.")
@click.option("--license", "license_", type=click.Choice(LICENSES), default=LICENSES[0],
              show_default=True)  # fmt: skip
@json_option
def command(
    *, name: str, directory: Path | None, author: str | None, license_: str, json_path: Path | None
) -> None:
    """Write a package that publishes a backend: a pass, a Triton kernel, tests, CI.

    NAME is what torch.compile(backend=...) is given, and what pip installs. What is written works
    as it stands; its README says what to change. Nothing that exists is overwritten.
    """
    check_writable(json_path)
    package = package_of(name, default_registry)
    by = author_of(author) if author is not None else None
    folder = directory if directory is not None else Path(name)
    files = write(folder, name=name, package=package, license_=license_, author=by)
    found = {"name": name, "package": package, "path": str(folder), "files": files}
    if written({"schema": SCHEMA, **found}, json_path):
        return
    click.echo(f"{folder}: {len(files)} files, the backend {name} in the package {package}")
    click.echo(f"install:  cd {shlex.quote(str(folder))} && python -m pip install -e '.[dev]'")
    click.echo("test:     python -m pytest")
    click.echo(f"race:     backbay race examples/mlp.py:mlp --backends eager,inductor,{name}")
