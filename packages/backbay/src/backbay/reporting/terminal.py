"""What reports in the terminal are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from backbay.errors import plain


def line(text: str, style: str = "") -> Text:
    """Return text from outside as one line."""
    return Text(plain(text), style=style)


def indented(text: str, style: str = "", *, by: int = 2) -> RenderableType:
    """Return text from outside as an indented line; spaces at its beginning indent it further."""
    lead = len(text) - len(text.lstrip())
    return Padding(line(text, style), (0, 0, 0, by + lead))


def table(*titles: str, folded: str = "", justify: JustifyMethod = "left") -> Table:
    """Return a table without lines; where it is too narrow, one column may fold its text."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        overflow: OverflowMethod = "fold" if title == folded else "ellipsis"
        made.add_column(title, justify=justify, no_wrap=title != folded, overflow=overflow)
    return made


def add_row(to: Table, cells: Sequence[object], style: str = "") -> None:
    """Add a row of text from outside to a table."""
    to.add_row(*(line(str(cell)) for cell in cells), style=style)


@dataclass(frozen=True)
class Hanging:
    """A line whose further lines are indented; no spaces are left at their ends."""

    line: Text
    first: int
    rest: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Wrap it to the width that it is printed at."""
        room = max(options.max_width - max(self.first, self.rest), 1)
        for number, part in enumerate(self.line.wrap(console, room)):
            part.rstrip()
            yield Text(" " * (self.rest if number else self.first)).append_text(part)
