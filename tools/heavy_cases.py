"""List the cases of which the ``quick`` profile has only a few: those that take long.

    python tools/heavy_cases.py TABLE.md ... > heavy.txt

The list stands in the package ``backbay_conformance``.

Puts Inductor through the levels of which ``quick`` has every case, once all of them and once as
``quick`` draws them, each with empty caches: what another case has compiled before costs nothing.
What takes more than a second in either is heavy: that is what compilers of C++ and of Triton take,
once or more. Not
in the list is the case that catches a seeded fault first, by any of the tables that
``kill_table`` wrote.
"""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from backbay_conformance import conform
from backbay_conformance.suite import SHARES

HEAVY_S = 1.0
FIRST = frozenset(
    {"load/loaded/forked_child_cannot_use_it", "load/loaded/configured_object_does_not_travel"}
)
"""The first that two workers compile. They pay for Inductor's checks of the C++ compiler, which
another would pay for in their place."""
_CATCHES = re.compile(r"\| `([^`]+)` \(\w+\) \|$", re.MULTILINE)
_HEAD = """\
# Of these cases `quick` has one in fifty; the seed decides which. Each takes Inductor more than a
# second of two cores with empty caches, and none is the first to catch a seeded fault.
# Made by: python tools/heavy_cases.py
"""


def main() -> int:
    """Measure, and print the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    tables = [x.read_text(encoding="utf-8") for x in parser.parse_args().tables]
    levels = [name for name, share in SHARES.items() if share == 1.0]
    seconds: dict[str, float] = {}
    for profile in ("full", "quick"):
        statement = conform("inductor", profile=profile, levels=levels, device="cpu", workers=2)
        for x in statement.results:
            seconds[x.id] = max(x.seconds, seconds.get(x.id, 0.0))
    sys.stdout.write(listed(seconds, first_catches(tables) | FIRST))
    return 0


def first_catches(tables: Iterable[str]) -> set[str]:
    """Return the cases that the tables name as the first to catch a fault."""
    return {case for table in tables for case in _CATCHES.findall(table)}


def listed(seconds: Mapping[str, float], kept: Collection[str]) -> str:
    """Return the list's text.

    Args:
        seconds: what each case took.
        kept: cases that are not listed, however long they take.
    """
    heavy = sorted(x for x, took in seconds.items() if took > HEAVY_S and x not in kept)
    return _HEAD + "".join(f"{x}\n" for x in heavy)


if __name__ == "__main__":
    sys.exit(main())
