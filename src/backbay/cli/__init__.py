"""The command line: ``backbay COMMAND``.

Commands are loaded when they are called: ``backbay list`` must not pay for the race's imports.
"""

import importlib
import sys
from typing import Any

import click

import backbay
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
    "conform": "backbay.cli.conform",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            for note in getattr(error, "__notes__", ()):
                click.echo(note, err=True)
            click.echo(f"backbay: {error}", err=True)
            sys.exit(2)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(backbay.__version__, prog_name="backbay")
def main() -> None:
    """Find, prove and race the backends of torch.compile."""
