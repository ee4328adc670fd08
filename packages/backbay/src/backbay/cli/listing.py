"""``backbay list``: which backends exist, and which run here."""

from pathlib import Path
from typing import Any

import click

from backbay.cli.completion import complete_tags
from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter, print_header
from backbay.cli.entry import entry, is_here, print_table, sources
from backbay.cli.parameters import DEVICE_TYPE, json_option
from backbay.errors import plain
from backbay.registry import HIDDEN_TAGS, Resolution
from backbay.registry.availability import of_resolution
from backbay.registry.known import KnownBackends

SCHEMA = "backbay.list/2"

_EXAMPLES = """
\b
Examples:
  backbay list                      what torch.compile(backend=...) finds here
  backbay list --available          what also runs here
  backbay list --all                debug and experimental ones too, and every known absent one
  backbay list --tag experimental   experimental ones
  backbay list --all --device cuda --json
  backbay list --venv .venv         what another environment has
"""


@click.command("list", epilog=_EXAMPLES)
@click.option("--all", "all_", is_flag=True, help="Debug, experimental and absent backends too.")
@click.option("--available", is_flag=True, help="Only what runs here.")
@click.option(
    "--device",
    type=DEVICE_TYPE,
    help="Only what compiles for this device type; say whether it can here.",
)
@click.option("--tag", shell_complete=complete_tags,
              help="Only what carries this tag; then also where that is debug or experimental.",
              )  # fmt: skip
@elsewhere
@json_option
def command(
    *,
    registry: KnownBackends,
    all_: bool,
    available: bool,
    device: str | None,
    tag: str | None,
    json_path: Path | None,
) -> None:
    """List backends, where each comes from, and whether it runs here.

    Nothing is imported: neither torch nor any backend.
    """
    if tag is not None:
        registry.check_tags([tag])
    shown = [
        x
        for x in registry.resolutions().values()
        if (all_ or is_here(x, hidden=HIDDEN_TAGS if tag is None else ()))
        and _concerns(x, device, tag)
    ]
    answers = [(x, of_resolution(x, registry.environment, device)) for x in shown]
    entries = [entry(x, answer) for x, answer in answers if answer.ready or not available]
    problems = list(registry.problems)
    document = {"schema": SCHEMA, "interpreter": interpreter(registry), "backends": entries}
    if written({**document, "problems": problems, "policy": sources(registry)}, json_path):
        return
    print_header(registry)
    print_table(entries, _explanation)
    for source in sources(registry):
        click.echo(f"policy: {source}", err=True)
    for problem in problems:
        click.echo(f"unreadable: {plain(problem)}", err=True)


def _concerns(resolution: Resolution, device: str | None, tag: str | None) -> bool:
    spec = resolution.spec
    if tag is not None and tag not in spec.tags:
        return False
    # Of one that says nothing of devices, nobody knows: it stays.
    return device is None or not spec.devices or device in spec.devices


def _explanation(row: dict[str, Any]) -> str:
    if row["state"] == "ready":
        return str(row["summary"])
    return f"{row['reason']}; {row['remedy']}"
