"""``backbay info``: everything that is known of one backend."""

from typing import Any

import click

from backbay.cli.listing import entry, print_json
from backbay.registry import BackendSpec, default_registry

SCHEMA = "backbay.info/1"


@click.command("info")
@click.argument("name")
@click.option("--device", help="Ask for this device type; default: any that is here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(*, name: str, device: str | None, as_json: bool) -> None:
    """Show what is known of backend NAME, without importing it."""
    spec = default_registry.spec(name)
    document = entry(spec, default_registry.availability(name, device))
    document["requires"] = _requirements(spec)
    document["install"] = spec.install
    document["shadowed"] = [str(s.origin) for s in default_registry.candidates(name)[1:]]
    if as_json:
        print_json({"schema": SCHEMA, **document})
        return
    _print(document)


def _requirements(spec: BackendSpec) -> dict[str, Any]:
    return {
        "distributions": list(spec.requires.distributions),
        "devices": list(spec.requires.devices),
        "tools": dict(spec.requires.tools),
    }


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415 (rich only where something is drawn)
    from rich.table import Table  # noqa: PLC0415

    requires = document["requires"]
    tools = ", ".join(f"{tool} (for {device})" for device, tool in requires["tools"].items())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in {
        "backend": document["name"],
        "summary": document["summary"] or "nobody says",
        "state": document["state"],
        "why": document["reason"],
        "what to do": document["remedy"],
        "origin": document["origin"],
        "also claimed by": "; ".join(document["shadowed"]),
        "tags": ", ".join(document["tags"]),
        "devices": ", ".join(requires["devices"]) or "nobody says",
        "needs": ", ".join([*requires["distributions"], tools]).strip(", "),
        "install": document["install"],
    }.items():
        if value:
            table.add_row(label, str(value))
    Console().print(table)
