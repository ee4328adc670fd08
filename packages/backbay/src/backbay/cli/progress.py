"""What a race or verification is doing, live: one line on a terminal, a line a stage elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.status import Status
from rich.text import Text

from backbay.cli.console import Screen
from backbay.errors import plain


class Tell(Protocol):
    """Shows what is going on with a workload and a backend, and how far it is."""

    def __call__(self, workload: str, backend: str, text: str, how_far: str = "", /) -> None:
        """Show it."""


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """Return a function that shows what is going on, until the block ends."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    with Status("starting", console=console) as status:

        def tell(workload: str, backend: str, text: str, how_far: str = "", /) -> None:
            said = f"{text}, {how_far}" if how_far else text
            rest = plain(f"· {backend} · {said}")
            status.update(Text.assemble((plain(workload), "bold"), f" {rest}"))

        yield tell


def _plain_lines(console: Screen) -> Tell:
    """Return what prints each stage once; a log does not want every round."""
    last = ""

    def tell(workload: str, backend: str, text: str, _how_far: str = "", /) -> None:
        nonlocal last
        line = plain(f"{workload} · {backend} · {text}")
        if line != last:
            console.print(Text(line), style="dim")
        last = line

    return tell
