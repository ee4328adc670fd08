"""``backbay lock``: write down what provides each backend, and see when it changes."""

import sys
from pathlib import Path

import click

from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter, print_header
from backbay.cli.files import check_writable, whole
from backbay.cli.parameters import json_option
from backbay.errors import plain
from backbay.registry.known import KnownBackends
from backbay.registry.lock import FILE, drift, lock_text

SCHEMA = "backbay.lock/1"

_EXAMPLES = """
\b
Examples:
  backbay lock                 write backbay.lock
  backbay lock --check         exit code 1 where what is installed differs from it
  backbay lock --venv .venv    of another environment
"""


@click.command("lock", epilog=_EXAMPLES)
@click.option("--check", is_flag=True, help="Compare with the file; write nothing.")
@click.option("--file", "path", type=click.Path(dir_okay=False, path_type=Path), default=FILE,
              show_default=True)  # fmt: skip
@elsewhere
@json_option
def command(*, registry: KnownBackends, check: bool, path: Path, json_path: Path | None) -> None:
    """Lock each backend to its distribution, version, manifest and range of torch.

    Nothing is imported: neither torch nor any backend.
    """
    check_writable(json_path)
    problems = drift(registry, path) if check else []
    if not check:
        text = lock_text(registry)
        with whole(path) as file:
            file.write_text(text, "utf-8")
    document = {"schema": SCHEMA, "file": str(path), "ok": not problems, "drift": problems}
    if not written({**document, "interpreter": interpreter(registry)}, json_path):
        print_header(registry)
        done = "what is installed is what was locked" if check else "written"
        click.echo("\n".join(map(plain, problems)) or f"{path}: {done}")
    sys.exit(1 if problems else 0)
