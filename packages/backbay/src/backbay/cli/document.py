"""What a command that draws little says as JSON: a document, where ``--json`` asks for it."""

from pathlib import Path
from typing import Any

import click


def written(document: dict[str, Any], json_path: Path | None) -> bool:
    """Write a document where it is asked for, and return whether it took standard output.

    Raises:
        InputError: it could not be written.
    """
    if json_path is None:
        return False
    import json  # noqa: PLC0415 (only where asked for)

    text = json.dumps(document, indent=2, default=str)
    if json_path == Path("-"):
        click.echo(text)
        return True
    from backbay.cli.files import whole  # noqa: PLC0415 (as above)

    with whole(json_path) as file:
        file.write_text(f"{text}\n", encoding="utf-8")
    return False
