"""``backbay list``: which backends exist, and which run here."""

import sys
from typing import Any

import click
import msgspec

from backbay.registry import HIDDEN_TAGS, Availability, BackendSpec, default_registry

SCHEMA = "backbay.list/1"
_PIPE_WIDTH = 240


def entry(spec: BackendSpec, availability: Availability) -> dict[str, Any]:
    """Give a backend as ``--json`` prints it."""
    return {
        "name": spec.name,
        "state": availability.state,
        "reason": availability.reason,
        "remedy": availability.remedy,
        "origin": str(spec.origin),
        "tags": list(spec.tags),
        "experimental": spec.experimental,
        "summary": spec.summary,
    }


def print_json(document: dict[str, Any]) -> None:
    """Print a document for machines."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


@click.command("list")
@click.option("--all", "all_", is_flag=True, help="Show debug and experimental backends too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(*, all_: bool, as_json: bool) -> None:
    """List backends, where each comes from, and whether it runs here.

    Nothing is imported: neither torch nor any backend.
    """
    registry = default_registry
    names = registry.list_backends(exclude_tags=() if all_ else HIDDEN_TAGS)
    entries = [entry(registry.spec(name), registry.availability(name)) for name in names]
    problems = registry.environment.installed.problems
    if as_json:
        print_json({"schema": SCHEMA, "backends": entries, "problems": problems})
        return
    _print_table(entries)
    for problem in problems:
        click.echo(f"unreadable: {problem}", err=True)


def _print_table(entries: list[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415 (rich only where something is drawn)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("backend", "state", "origin"):
        table.add_column(title, no_wrap=True)
    table.add_column("why, and what to do", overflow="fold", min_width=20)
    for row in entries:
        table.add_row(row["name"], _coloured(row["state"]), row["origin"], _explanation(row))
    # A pipe has no width: whoever reads it wants a line a backend.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def _coloured(state: str) -> str:
    return f"[green]{state}[/green]" if state == "ready" else f"[yellow]{state}[/yellow]"


def _explanation(row: dict[str, Any]) -> str:
    if row["state"] == "ready":
        return str(row["summary"])
    return f"{row['reason']}; {row['remedy']}"
