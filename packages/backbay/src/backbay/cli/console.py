"""What draws on the terminal, in the one way that all commands draw."""

from typing import Any

from rich.console import Console


class Screen(Console):
    """A console that reads no markup in what it is given, and reports a reader who is gone."""

    def __init__(self, **settings: Any) -> None:
        """Make one; ``settings`` are a `Console`'s."""
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **settings})

    def on_broken_pipe(self) -> None:
        """Let the error pass, for the one place where all are worded."""
        raise  # noqa: PLE0704 (rich calls it while it handles the error)
