"""``backbay decisions``: what was decided for models, and ``backend="backbay.auto"`` applies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backbay.cli.document import written
from backbay.cli.files import whole
from backbay.cli.parameters import json_option
from backbay.errors import InputError, escaped, plain

if TYPE_CHECKING:
    from backbay.decisions import Decision, Store

SCHEMA = "backbay.decisions/1"

_EXAMPLES = """
\b
Examples:
  backbay decisions list
  backbay decisions show 1a2b3c4d
  backbay decisions forget 1a2b3c4d
  backbay decisions export decisions.json      for others to import, or to commit
  backbay decisions import decisions.json
"""


@click.group("decisions", epilog=_EXAMPLES)
def command() -> None:
    """List, show, forget and exchange what was decided for models.

    `backbay race` decides, and backend="backbay.auto" applies it: a graph that was in a raced
    workload is compiled by the arm that won, on the same device and torch.
    """


@command.command("list")
@json_option
def list_command(*, json_path: Path | None) -> None:
    """List every decision, the newest first."""
    store = _store()
    found = store.decisions()
    rows = [_document(x) for x in found]
    if written({"schema": SCHEMA, "file": str(store.path), "decisions": rows}, json_path):
        return
    if not found:
        click.echo(f"nothing was decided yet: backbay race decides ({plain(str(store.path))})")
        return
    _print_table(found)


@command.command("show")
@click.argument("name")
@json_option
def show_command(*, name: str, json_path: Path | None) -> None:
    """Show all that is known of decision NAME."""
    decision = _named(_store(), name)
    document = _document(decision)
    if written({"schema": SCHEMA, **document}, json_path):
        return
    width = max(map(len, document))
    for key, value in document.items():
        click.echo(f"{key:{width}}  {escaped(_shown(value))}")


@command.command("forget")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Forget every decision.")
def forget_command(*, names: Sequence[str], everything: bool) -> None:
    """Forget decisions by NAME."""
    if bool(names) == everything:
        raise InputError("name decisions to forget (see `backbay decisions list`), or give --all")
    store = _store()
    chosen = [x.name for x in store.decisions()] if everything else list(names)
    for name in chosen:
        _named(store, name)
    click.echo(f"{store.forget(chosen)} forgotten")


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def export_command(*, file: Path) -> None:
    """Write every decision to FILE, as JSON."""
    from backbay.decisions.exchange import encoded  # noqa: PLC0415 (msgspec, only where needed)

    found = _store().decisions()
    with whole(file) as neighbour:
        neighbour.write_bytes(encoded(found))
    click.echo(f"{plain(str(file))}: {_counted(found)}")


@command.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def import_command(*, file: Path) -> None:
    """Keep the decisions of FILE, in place of those on the same models and devices.

    They decide which backends compile, with which options: import a file as you would run code.
    """
    from backbay.decisions.exchange import read  # noqa: PLC0415 (as above)

    found = read(file)
    _store().keep_all(found)
    click.echo(f"{_counted(found)} kept")


def _store() -> "Store":
    from backbay.decisions import Store  # noqa: PLC0415 (msgspec and SQLite, only where needed)

    return Store(on_problem=lambda problem: click.echo(plain(problem), err=True))


def _named(store: "Store", name: str) -> "Decision":
    found = next((x for x in store.decisions() if x.name == name), None)
    if found is None:
        raise InputError(f"there is no decision {name!r}: see `backbay decisions list`")
    return found


def _counted(decisions: Sequence["Decision"]) -> str:
    return f"{len(decisions)} decision{'' if len(decisions) == 1 else 's'}"


def _document(decision: "Decision") -> dict[str, Any]:
    return {
        "name": decision.name,
        "workload": decision.workload,
        "step": decision.step,
        "dtype": decision.dtype,
        "use": str(decision.arm),
        "backend": decision.arm.backend,
        "mode": decision.arm.mode,
        "options": decision.arm.options,
        "scope": decision.arm.scope,
        "objective": decision.objective,
        "raced": decision.raced,
        "why": decision.why,
        "over_eager": decision.over_eager,
        "interval": decision.interval,
        "device": decision.place.device,
        "driver": decision.place.driver,
        "threads": decision.place.threads,
        "versions": decision.place.versions,
        "graphs": decision.graphs,
        "created": decision.created,
    }


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _print_table(decisions: Sequence["Decision"]) -> None:
    from rich.table import Table  # noqa: PLC0415 (rich only where something is drawn)
    from rich.text import Text  # noqa: PLC0415

    from backbay.cli.console import LISTING, Screen  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "workload", "step", "dtype", "use", "device", "why"):
        table.add_column(title, overflow="fold", no_wrap=title in {"name", "step"})
    for x in decisions:
        row = (x.name, x.workload, x.step, x.dtype, str(x.arm), x.place.device, x.why)
        table.add_row(*(Text(plain(cell)) for cell in row))
    Screen(piped=LISTING).print(table)
