"""``python -m backbay.diagnose``: runs a script, and finds what makes its loop slow."""

import sys
from pathlib import Path
from typing import NoReturn

import click

from backbay.cli.diagnose import report
from backbay.cli.files import check_writable
from backbay.dependencies import check_installed
from backbay.diagnose.attaching import STEPS, Attached
from backbay.diagnose.script import Script
from backbay.errors import InputError, plain

_EXAMPLES = """
\b
Examples:
  python -m backbay.diagnose train.py --epochs 3
  python -m backbay.diagnose --steps 50 --json report.json --html report.html train.py
"""


@click.command(
    epilog=_EXAMPLES,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True,
              help="Steps that are timed, and as many that are profiled.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Write everything as JSON to FILE.")  # fmt: skip
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Write one self-contained HTML page to FILE.")  # fmt: skip
def command(
    *,
    script: Path,
    arguments: tuple[str, ...],
    steps: int,
    json_path: Path | None,
    html_path: Path | None,
) -> NoReturn:
    """Run SCRIPT with its ARGUMENTS, and find what makes its loop slow under torch.compile.

    A step is a call of the compiled function that is called first. When nothing new is compiled,
    some steps are timed, and as many profiled; then the report is written to standard error, and
    the script goes on as it would without. Standard output is the script's own, and so is the exit
    code.
    """
    if json_path == Path("-"):
        _say("standard output is the script's own: name a file for --json")
        sys.exit(2)
    try:
        check_installed("python -m backbay.diagnose", "torch", "race")
        check_writable(json_path, html_path)
    except InputError as error:
        _say(str(error))
        sys.exit(2)
    one = Script(script, arguments)

    def made(attached: Attached) -> None:
        try:
            report(attached.diagnosis, json_path, html_path, stderr=True)
        except InputError as error:
            one.unseen = str(error)

    try:
        code = one.run(steps=steps, made=made)
    finally:
        if one.unseen:
            _say(one.unseen)
    sys.exit(code)


def _say(text: str) -> None:
    click.echo(f"backbay: {plain(text)}", err=True)
