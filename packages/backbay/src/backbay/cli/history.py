"""``backbay history``: a metric over the races that were kept."""

from pathlib import Path

import click

from backbay.cli.files import check_writable
from backbay.cli.output import write
from backbay.cli.parameters import json_option
from backbay.history import METRICS, History, Metric, traced
from backbay.race.reading import read

_EXAMPLES = """
\b
Examples:
  backbay history races/*.json
  backbay history races/*.json --metric median_ms --html history.html
"""


@click.command("history", epilog=_EXAMPLES)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--metric", type=click.Choice(METRICS), default=METRICS[0], show_default=True)
@json_option
@click.option("--html", "html_path", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Write one self-contained HTML page.")  # fmt: skip
def command(
    *, files: tuple[Path, ...], metric: Metric, json_path: Path | None, html_path: Path | None
) -> None:
    """Show a metric over the races in FILEs, which backbay race --json wrote.

    Races on other devices, processors or dtypes have tables of their own; what changed of machine
    and versions from one race to the next is listed.

    Exit code 2: a file holds no race, or one of another schema.
    """
    from backbay.history.table import table  # noqa: PLC0415 (rich is loaded to draw only)

    check_writable(json_path, html_path)
    history = traced([(str(path), read(path)) for path in files], metric)
    html = (html_path, lambda path: _write_page(history, path)) if html_path is not None else None
    write(history, table(history), json_path, html)


def _write_page(history: History, path: Path) -> None:
    from backbay.history.page import write_page  # noqa: PLC0415 (matplotlib takes a second)

    write_page(history, path)
