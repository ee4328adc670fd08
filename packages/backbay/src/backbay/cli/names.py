"""Shell completion of backend names."""

import click
from click.shell_completion import CompletionItem


def complete(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the known names that begin as typed, with what each is."""
    from backbay.registry import default_registry  # noqa: PLC0415 (only a completion asks)

    specs = default_registry.specs()
    return [
        CompletionItem(name, help=spec.summary)
        for name, spec in specs.items()
        if name.startswith(typed)
    ]
