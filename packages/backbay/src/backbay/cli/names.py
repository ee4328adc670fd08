"""Shell completion of names."""

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


def complete_tags(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the tags of known backends that begin as typed."""
    from backbay.registry import default_registry  # noqa: PLC0415 (only a completion asks)

    return [CompletionItem(x) for x in sorted(default_registry.tags()) if x.startswith(typed)]


def complete_codes(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the codes of findings that begin as the last one typed, with what each is."""
    from backbay.explain.codes import CODES  # noqa: PLC0415 (only a completion asks)

    before, comma, last = typed.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{code}", help=known.title)
        for code, known in CODES.items()
        if code.startswith(last.upper())
    ]
