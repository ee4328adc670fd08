"""What draws on the terminal, in the one way that all commands draw."""

import os
import sys
from typing import Any

from rich.console import Console

LISTING = 240
"""Columns of a list that is piped: whoever reads it wants a line for each entry."""


class Screen(Console):
    """A console that reads no markup in what it is given, and reports a reader who is gone."""

    def __init__(self, *, piped: int | None = None, **settings: Any) -> None:
        """Make one.

        Args:
            piped: columns where standard output is no terminal and ``COLUMNS`` does not say;
                default: 80.
            settings: a `Console`'s.
        """
        columns = os.environ.get("COLUMNS", "")
        says = columns.isdecimal() and int(columns) > 0
        if piped is not None and not sys.stdout.isatty() and not says:
            settings["width"] = piped
        environ = {k: v for k, v in os.environ.items() if k != "COLUMNS" or says}
        plainly = {"markup": False, "emoji": False, "highlight": False, "_environ": environ}
        super().__init__(**{**plainly, **settings})

    def on_broken_pipe(self) -> None:
        """Let the error pass, for the one place where all are worded."""
        raise  # noqa: PLE0704 (rich calls it while it handles the error)
