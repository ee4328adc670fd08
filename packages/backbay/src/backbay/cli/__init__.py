"""The command line: ``backbay COMMAND``.

Commands are loaded when they are called: ``backbay list`` must not pay for the race's imports, nor
for looking at what other distributions publish.
"""

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import click

import backbay
from backbay.cli.interrupts import SIGINT_CODE, SIGTERM_CODE, Terminated, terminable
from backbay.errors import ExperimentalBackendWarning, InputError, escaped, plain

_COMMANDS = {
    "list": "backbay.cli.listing",
    "info": "backbay.cli.info",
    "doctor": "backbay.cli.doctor",
    "lock": "backbay.cli.lock",
    "check-manifest": "backbay.cli.check_manifest",
    "publish-check": "backbay.cli.publish_check",
    "stubs": "backbay.cli.stubs",
    "decisions": "backbay.cli.decisions",
    "new": "backbay.cli.new",
    "race": "backbay.cli.race",
    "history": "backbay.cli.history",
    "diagnose": "backbay.cli.diagnose",
    "explain": "backbay.cli.explain",
    "verify": "backbay.cli.verify",
}
_NEEDS: dict[str, tuple[str, ...]] = {
    "race": ("torch", "race"),
    "history": ("race",),
    "diagnose": ("torch", "race"),
    "explain": ("torch", "race"),
    "verify": ("torch", "race"),
}
"""Extras that must be installed, by command."""


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
        ignored = list(_ignored())
        if ignored:
            with formatter.section("Ignored"):
                formatter.write_dl(ignored)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _faults_on_one_line():
            _check_unicode(args)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _faults_on_one_line():
            try:
                with terminable(), _warned_on_one_line():
                    return super().invoke(ctx)
            except KeyboardInterrupt as stopped:
                click.echo("backbay: interrupted", err=True)
                sys.exit(SIGTERM_CODE if isinstance(stopped, Terminated) else SIGINT_CODE)


@contextlib.contextmanager
def _faults_on_one_line() -> Iterator[None]:
    """End with exit code 2, and a line that says why, where the input or the system is at fault."""
    _accept_every_character()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a full disk shows here, not when Python ends
    except InputError as error:
        known = _unfit_torchvision(error)
        if known is not None:
            _fail(f"{str(error).partition(': ')[0]}: {known}")
        for note in getattr(error, "__notes__", ()):
            click.echo(escaped(note), err=True)
        _fail(str(error))
    except OSError as error:
        if error.filename is None and _is_nowhere():
            _fail("the current directory was removed: change to one that is there")
        place = f"{error.filename}: " if error.filename is not None else ""
        _fail(plain(f"{place}{error.strerror or error}"))


@contextlib.contextmanager
def _warned_on_one_line() -> Iterator[None]:
    """Print what Backbay warns of on one line; of all other warnings Python says where they are."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **given: Any) -> None:
        if issubclass(category, ExperimentalBackendWarning):
            click.echo(f"backbay: {plain(str(message))}", err=True)
        else:
            shown(message, category, *where, **given)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _unfit_torchvision(error: InputError) -> str | None:
    """Return what to do about torchvision, where it is why something did not import."""
    if not any("torchvision" in x for x in (str(error), *getattr(error, "__notes__", ()))):
        return None
    from backbay.registry import default_registry, torchvision  # noqa: PLC0415 (for an error)

    return torchvision.problem(default_registry.environment)


def _is_nowhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (pathlib is not imported for it)
    except FileNotFoundError:
        return True
    return False


def _fail(why: str) -> NoReturn:
    with contextlib.suppress(OSError):
        click.echo(f"backbay: {why}", err=True)
    try:
        sys.stdout.flush()
    except OSError:  # Python would try again when it ends, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(2)


def _accept_every_character() -> None:
    """Let an output write the code of a character that its encoding lacks, instead of failing."""
    if sys.stdout is None:  # closed by whoever started this process
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_unicode(args: list[str]) -> None:
    """Check that what was typed is text: reports name it, and JSON can hold nothing else."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise InputError(f"the argument {arg!r} is not Unicode: rename the file") from None


def _loaded(name: str) -> click.Command | None:
    if name not in _COMMANDS:
        from backbay.cli import plugins  # noqa: PLC0415 (reads what is installed)

        return plugins.load(name)
    if name in _NEEDS:
        from backbay.dependencies import check_installed  # noqa: PLC0415 (imports importlib.util)

        check_installed(f"backbay {name}", *_NEEDS[name])
    command: click.Command = importlib.import_module(_COMMANDS[name]).command
    return command


def _help(name: str) -> str:
    try:
        command = _loaded(name)
    except InputError as error:
        return str(error)
    return "" if command is None else command.get_short_help_str(limit=70)


def _ignored() -> Iterator[tuple[str, str]]:
    from backbay.cli import plugins  # noqa: PLC0415 (as above)

    for name, entry_points in plugins.published().items():
        if name in _COMMANDS:
            who = ", ".join(f"{x.distribution.name} {x.distribution.version}" for x in entry_points)
            yield name, f"published by {who}; the built-in command has the name"
    yield from plugins.refused()


_FIRST_STEPS = """\
Find, prove and race the backends of torch.compile. What to do first:

  backbay doctor                   which backends run here, and what to do about the others
  backbay explain train.py:model   where torch.compile stops or compiles again, at your lines
  backbay verify train.py:model    is what it computes right
  backbay race train.py:model      which backend is fastest
  backbay diagnose train.py:model  what makes it slow, and what was tried against it

train.py:model is a function of yours that returns a model and its inputs, (model, args); left out,
it is a small decoder. All commands: backbay --help. Of one, with examples: backbay race --help.
"""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(backbay.__version__, prog_name="backbay")
@click.pass_context
def main(context: click.Context) -> None:
    """Find, prove and race the backends of torch.compile."""
    if context.invoked_subcommand is None:
        click.echo(_FIRST_STEPS, nl=False)
