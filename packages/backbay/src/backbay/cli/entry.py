"""A backend as the commands print it: one dictionary, the same keys everywhere."""

from collections.abc import Callable, Iterable
from typing import Any

from backbay.errors import plain
from backbay.registry import HIDDEN_TAGS, Availability, Resolution
from backbay.registry.known import KnownBackends


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


def is_here(resolution: Resolution, hidden: Iterable[str] = HIDDEN_TAGS) -> bool:
    """Whether a list shows a backend unasked: it is provided here, and carries no hidden tag."""
    return resolution.standing != "absent" and not set(hidden).intersection(resolution.spec.tags)


def sources(registry: KnownBackends) -> list[str]:
    """Return where the policy that holds here is from: files, variables, a parent process."""
    return list(dict.fromkeys(layer.source for layer in registry.policy.layers))


def print_table(
    entries: list[dict[str, Any]],
    explanation: Callable[[dict[str, Any]], str],
    *,
    probed: bool = False,
) -> None:
    """Print backends for people: a line each, with what explains its state.

    Args:
        entries: as `entry` returns them; those that were probed with ``probe``.
        explanation: returns what is written in the last column.
        probed: whether there is a column of what loading took.
    """
    from rich.table import Table  # noqa: PLC0415 (rich only where something is drawn)
    from rich.text import Text  # noqa: PLC0415

    from backbay.cli.console import LISTING, Screen  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("backend", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("origin", overflow="fold")
    if probed:
        table.add_column("import ms", justify="right", no_wrap=True)
    table.add_column("why, and what to do", overflow="fold")
    for row in entries:
        colour = "green" if row["state"] == "ready" else "yellow"
        state = Text(row["state"], style=colour)
        took = row.get("probe", {}).get("import_ms")
        cost = ["" if took is None else f"{took:.0f}"] if probed else []
        texts = (row["name"], row["origin"], explanation(row))
        name, origin, why = (Text(plain(x)) for x in texts)
        table.add_row(name, state, origin, *cost, why)
    Screen(piped=LISTING).print(table)
