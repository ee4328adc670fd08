"""What a race or verification is doing, live: one line on a terminal, a line a stage elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.status import Status


class Tell(Protocol):
    """Shows what is going on with a workload and a backend, and how far it is."""

    def __call__(self, workload: str, backend: str, text: str, how_far: str = "", /) -> None:
        """Show it."""


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """Return a function that shows what is going on, until the block ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    with Status("starting", console=console) as status:

        def tell(workload: str, backend: str, text: str, how_far: str = "", /) -> None:
            said = f"{text}, {how_far}" if how_far else text
            status.update(f"[bold]{workload}[/bold] · {backend} · {said}")

        yield tell


def _plain_lines(console: Console) -> Tell:
    """Return what prints each stage once; a log does not want every round."""
    last = ""

    def tell(workload: str, backend: str, text: str, _how_far: str = "", /) -> None:
        nonlocal last
        line = f"{workload} · {backend} · {text}"
        if line != last:
            console.print(line, style="dim", markup=False, highlight=False)
        last = line

    return tell
