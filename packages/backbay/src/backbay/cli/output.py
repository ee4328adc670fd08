"""Where a report goes: a drawing to the terminal, JSON and a page to files."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from backbay.cli.files import whole
from backbay.errors import InputError, Interrupted

if TYPE_CHECKING:
    from rich.console import RenderableType

WritePage = Callable[[Path], None]


def write(
    report: Any,
    drawn: "RenderableType",
    json_path: Path | None,
    html: tuple[Path, WritePage] | None,
    *,
    stderr: bool = False,
    wraps: bool = True,
) -> None:
    """Draw a report, and write it as it is asked for.

    Args:
        report: what JSON is made of.
        drawn: what is drawn; to standard error where JSON takes standard output.
        json_path: a file, or ``-`` for standard output.
        html: a file, and what writes the page to it.
        stderr: whether all that is printed goes to standard error.
        wraps: whether lines are broken where the screen ends; not those of a program.

    Raises:
        InputError: one of these could not be written; the others were.
    """
    to_stdout = json_path == Path("-")
    problems: list[str] = []
    with _noted(problems):
        _draw(drawn, stderr=stderr or to_stdout, wraps=wraps)
    if json_path is not None:
        with _noted(problems):
            _write_json(report, json_path)
    if html is not None:
        path, write_page = html
        with _noted(problems):
            with whole(path) as file:
                write_page(file)
            click.echo(f"page: {path}", err=stderr or to_stdout)
    if problems:
        raise InputError("; ".join(problems))


@contextlib.contextmanager
def written_anyway(write_it: Callable[[Any], object]) -> Iterator[None]:
    """Write what there is of a report where the block is interrupted."""
    try:
        yield
    except Interrupted as stopped:
        try:
            write_it(stopped.report)
        except InputError as error:
            click.echo(f"backbay: {error}", err=True)
        raise (stopped.__cause__ or stopped) from None


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Note what can't be written, and go on."""
    try:
        yield
    except InputError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"standard output can't be written: {error.strerror or error}")
        with contextlib.suppress(OSError, ValueError):  # when Python ends, it writes the rest of it
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _draw(drawn: "RenderableType", *, stderr: bool, wraps: bool) -> None:
    from backbay.cli.console import Screen  # noqa: PLC0415 (rich only where something is drawn)

    Screen(stderr=stderr).print(drawn, soft_wrap=not wraps)


def _write_json(report: Any, path: Path) -> None:
    document = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if path == Path("-"):
        click.echo(document.decode())
        return
    with whole(path) as file:
        file.write_bytes(document + b"\n")
