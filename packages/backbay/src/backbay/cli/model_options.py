"""Options of commands that build a model, and look at it."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from backbay.cli.completion import complete_codes
from backbay.cli.parameters import DEVICE, SEED
from backbay.errors import plain
from backbay.race import DTYPES
from backbay.workloads import SIZES

if TYPE_CHECKING:
    from backbay.explain import FindingRecord

Command = TypeVar("Command", bound=Callable[..., Any])


def built_as(command: Command) -> Command:
    """Add how a workload is built: ``--dtype``, ``--device``, ``--size`` and ``--seed``."""
    options = (
        click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True),
        click.option(
            "--device",
            type=DEVICE,
            help="cpu, cuda, cuda:1, ...  [default: the accelerator, if any]",
        ),
        click.option("--size", type=click.Choice(SIZES), help="Size of built-in models."),
        click.option("--seed", type=SEED, default=0, show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def fail_on(command: Command) -> Command:
    """Add ``--fail-on CODES``: findings that end a command with exit code 1."""
    option = click.option(
        "--fail-on",
        "codes",
        multiple=True,
        shell_complete=complete_codes,
        metavar="CODES",
        help="Exit code 1 if one of these is found, by commas: BB101, or BB1 for all of a kind "
        "except notes.",
    )
    return option(command)


def end(found: "Sequence[FindingRecord]", *, raised: bool) -> NoReturn:
    """Name findings that ``--fail-on`` names, and end the command.

    Args:
        found: those findings.
        raised: whether the model or the backend raised; that is exit code 1, too.
    """
    for one in found:
        click.echo(f"backbay: --fail-on: {one.code}: {plain(one.message)}", err=True)
    sys.exit(1 if raised or found else 0)
