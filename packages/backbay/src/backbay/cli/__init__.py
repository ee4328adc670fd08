"""The command line: ``backbay COMMAND``.

Commands are loaded when they are called: ``backbay list`` must not pay for the race's imports, nor
for looking at what other distributions publish.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import click

import backbay
from backbay.cli.interrupts import SIGINT_CODE, SIGTERM_CODE, Terminated, terminable
from backbay.errors import InputError

_COMMANDS = {
    "list": "backbay.cli.listing",
    "info": "backbay.cli.info",
    "doctor": "backbay.cli.doctor",
    "lock": "backbay.cli.lock",
    "check-manifest": "backbay.cli.check_manifest",
    "stubs": "backbay.cli.stubs",
    "new": "backbay.cli.new",
    "race": "backbay.cli.race",
    "explain": "backbay.cli.explain",
    "verify": "backbay.cli.verify",
}
_NEED_TORCH = frozenset({"race", "explain", "verify"})


class _Commands(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        from backbay.cli import plugins  # noqa: PLC0415 (reads what is installed; for help alone)

        return [*_COMMANDS, *sorted({*plugins.published(), *plugins.KNOWN} - _COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return _loaded(cmd_name)
        except InputError:
            if ctx.resilient_parsing:  # a shell completes: there is nobody to tell
                return None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command; of one that can't be loaded, why."""
        rows = [(name, _help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        clashes = list(_clashes())
        if clashes:
            with formatter.section("Ignored"):
                formatter.write_dl(clashes)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            click.echo("backbay: interrupted", err=True)
            sys.exit(SIGTERM_CODE if isinstance(stopped, Terminated) else SIGINT_CODE)
        except InputError as error:
            for note in getattr(error, "__notes__", ()):
                click.echo(note, err=True)
            click.echo(f"backbay: {error}", err=True)
            sys.exit(2)


def _loaded(name: str) -> click.Command | None:
    if name not in _COMMANDS:
        from backbay.cli import plugins  # noqa: PLC0415 (reads what is installed)

        return plugins.load(name)
    if name in _NEED_TORCH:
        from backbay.dependencies import check_installed  # noqa: PLC0415 (imports importlib.util)

        check_installed(f"backbay {name}")
    command: click.Command = importlib.import_module(_COMMANDS[name]).command
    return command


def _help(name: str) -> str:
    try:
        command = _loaded(name)
    except InputError as error:
        return str(error)
    return "" if command is None else command.get_short_help_str(limit=70)


def _clashes() -> Iterator[tuple[str, str]]:
    from backbay.cli import plugins  # noqa: PLC0415 (as above)

    for name, entry_points in plugins.published().items():
        if name in _COMMANDS:
            who = ", ".join(f"{x.distribution.name} {x.distribution.version}" for x in entry_points)
            yield name, f"published by {who}; the built-in command has the name"


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(backbay.__version__, prog_name="backbay")
def main() -> None:
    """Find, prove and race the backends of torch.compile."""
