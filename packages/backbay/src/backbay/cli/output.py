"""Where a report goes: a drawing to the terminal, JSON and a page to files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType

WritePage = Callable[[Path], None]


def write(
    report: Any,
    drawn: "RenderableType",
    json_path: Path | None,
    html: tuple[Path, WritePage] | None,
) -> None:
    """Draw a report, and write it as it is asked for.

    Args:
        report: what JSON is made of.
        drawn: what is drawn; to standard error where JSON takes standard output.
        json_path: a file, or ``-`` for standard output.
        html: a file, and what writes the page to it.
    """
    from backbay.cli.console import Screen  # noqa: PLC0415 (rich only where something is drawn)

    to_stdout = json_path == Path("-")
    Screen(stderr=to_stdout).print(drawn)
    if json_path is not None:
        document = msgspec.json.format(msgspec.json.encode(report), indent=2)
        if to_stdout:
            click.echo(document.decode())
        else:
            json_path.write_bytes(document + b"\n")
    if html is not None:
        path, write_page = html
        write_page(path)
        click.echo(f"page: {path}", err=to_stdout)
