"""``--python`` and ``--venv``: a command reads another interpreter's environment, as files."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from backbay.errors import escaped
from backbay.registry import Environment, Registry, default_registry
from backbay.registry.known import KnownBackends

Command = Callable[..., Any]


def elsewhere(command: Command) -> Command:
    """Add the two options; the command gets ``registry``: what is known in that environment.

    It is the process's own where neither is given.
    """

    @functools.wraps(command)
    def reading(*, python: Path | None, venv: Path | None, **given: Any) -> Any:
        return command(registry=_registry(python, venv), **given)

    venv = click.option(
        "--venv",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Likewise, of the virtual environment in DIR.",
    )
    python = click.option(
        "--python",
        type=click.Path(path_type=Path),
        metavar="PYTHON",
        help="Read the environment of this interpreter, a file or a program; import nothing of it.",
    )
    return python(venv(reading))


def _registry(python: Path | None, venv: Path | None) -> KnownBackends:
    if python is not None and venv is not None:
        raise click.UsageError("give --python or --venv, not both")
    given = python or venv
    if given is None:
        return default_registry
    from backbay.registry.other_interpreter import (  # noqa: PLC0415 (only where asked for)
        other_interpreter,
    )

    return KnownBackends(Environment.of(other_interpreter(given)))


def is_elsewhere(registry: KnownBackends) -> bool:
    """Whether a command reads another environment than its own."""
    return not isinstance(registry, Registry)


def interpreter(registry: KnownBackends) -> dict[str, str | None]:
    """Return which interpreter's environment was read, as ``--json`` has it."""
    here = registry.environment
    return {
        "executable": here.interpreter.executable,
        "python": here.interpreter.version,
        "platform": here.interpreter.platform,
        "torch": here.torch_build.get("__version__"),
    }


def print_header(registry: KnownBackends) -> None:
    """Print, above a table, whose environment it is of, unless it is this process's own."""
    if not is_elsewhere(registry):
        return
    said = interpreter(registry)
    torch = f"torch {said['torch']}" if said["torch"] else "no torch"
    click.echo(escaped(f"{said['executable']}: Python {said['python']}, {torch}\n"))
