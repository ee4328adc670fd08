"""What a race is doing, live: one line on a terminal, one line a stage elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.status import Status

from backbay.race.workload_race import Tell


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """Return a function that shows what is going on, until the block ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainLines(console).tell
        return
    with Status("starting", console=console) as status:

        def tell(workload: str, backend: str, text: str) -> None:
            status.update(f"[bold]{workload}[/bold] · {backend} · {text}")

        yield tell


class _PlainLines:
    """Prints each stage once; a log does not want every round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def tell(self, workload: str, backend: str, text: str) -> None:
        line = f"{workload} · {backend} · {text.partition(', round')[0]}"
        if line != self._last:
            self._console.print(line, style="dim", markup=False, highlight=False)
        self._last = line
