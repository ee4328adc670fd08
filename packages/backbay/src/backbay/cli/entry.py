"""A backend as the commands print it: one dictionary, the same keys everywhere."""

from typing import Any

import click

from backbay.registry import HIDDEN_TAGS, Availability, Resolution


def entry(resolution: Resolution, availability: Availability) -> dict[str, Any]:
    """Return a backend as ``--json`` prints it."""
    spec = resolution.spec
    return {
        "name": resolution.name,
        "state": availability.state,
        "reason": availability.reason,
        "remedy": availability.remedy,
        "origin": str(spec.origin),
        "tags": list(spec.tags),
        "experimental": spec.experimental,
        "summary": spec.summary,
    }


def is_here(resolution: Resolution, asked_tag: str | None = None) -> bool:
    """Return whether a list shows a backend unasked: it is provided here, and not a hidden one."""
    if resolution.candidates[0].standing == "absent":
        return False
    return not (set(HIDDEN_TAGS) - {asked_tag}).intersection(resolution.spec.tags)


def print_json(document: dict[str, Any]) -> None:
    """Print a document for machines."""
    import json  # noqa: PLC0415 (only where asked for)

    click.echo(json.dumps(document, indent=2, default=str))


def coloured(state: str) -> str:
    """Return a state as rich draws it."""
    return f"[green]{state}[/green]" if state == "ready" else f"[yellow]{state}[/yellow]"
