"""Write the page on the backends that Backbay knows of, docs/reference/backends.md.

    python tools/backends_page.py [--check]

It is made of the catalogue alone, so it does not depend on what is installed. Exit code 1 with
``--check``: the page says something else.
"""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from backbay.registry import BackendSpec, KnownFault
from backbay.registry._catalog import SPECS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "backends.md"
HEAD = """\
# Backends

The backends that Backbay knows of, whether they are installed or not. `backbay list --all` says
which of them are here, and `backbay doctor NAME` what is in the way of one.
[How the engines did](../engines.md) is a page of its own. · stands for what nobody has said.

`python tools/backends_page.py` writes this page from the catalogue.
"""
GROUPS: tuple[tuple[str, Callable[[BackendSpec], bool]], ...] = (
    ("Of PyTorch", lambda x: x.loading == "torch" and not x.broken),
    ("Of Backbay", lambda x: (x.origin.distribution or "").startswith("backbay")),
    ("Of other distributions", lambda x: bool(x.install) and not x.broken),
    ("Not beside the PyTorch of today", lambda _: True),
)


def main() -> int:
    """Write the page, or compare it with what is there."""
    after = "\n".join(page())
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


def page() -> Iterator[str]:
    """Yield the page's lines."""
    yield HEAD
    left = sorted(SPECS, key=lambda x: x.name)
    for title, belongs in GROUPS:
        yield f"## {title}\n"
        yield "| backend | what it is | install | devices | trains | sizes may change |"
        yield "| --- | --- | --- | --- | --- | --- |"
        mine = [x for x in left if belongs(x)]
        left = [x for x in left if x not in mine]
        yield from map(row, mine)
        yield ""
        yield from notes(mine)


def row(spec: BackendSpec) -> str:
    """Return a backend's line in its table."""
    traits = spec.traits
    tags = f" ({', '.join(spec.tags)})" if spec.tags else ""
    cells = (
        f"`{spec.name}`",
        f"{spec.summary}{tags}",
        f"`{spec.install}`" if spec.install else "",
        ", ".join(traits.devices or ()) or "·",
        said(traits.training),
        said(traits.dynamic_shapes),
    )
    return f"| {' | '.join(cells)} |"


def notes(specs: Iterable[BackendSpec]) -> Iterator[str]:
    """Yield what is known of backends: why they don't run, and where they stop."""
    for spec in specs:
        for fault in (*spec.broken, *spec.limits):
            line = f"- `{spec.name}`: {worded(fault)}"
            yield textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False)
    yield ""


def worded(fault: KnownFault) -> str:
    """Return a fault with what to do about it."""
    return f"{fault.reason}; {fault.remedy}" if fault.remedy else fault.reason


def said(value: bool | None) -> str:
    """Return a trait in a word."""
    return "·" if value is None else "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(main())
