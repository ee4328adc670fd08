"""List the cases of which the ``quick`` profile has only a few: those that take long.

    python tools/heavy_cases.py TABLE.md ... > src/backbay/conformance/heavy.txt

Puts Inductor, with empty caches, through the levels of which ``quick`` has every case. What takes
it more than a second is heavy: that is what compilers of C++ and of Triton take, once or more. Not
in the list is the case that catches a seeded fault first, by any of the tables that
``backbay.conformance.killing`` wrote.
"""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from backbay.conformance import conform
from backbay.conformance.suite import SHARES

HEAVY_S = 1.0
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
    statement = conform("inductor", profile="full", levels=levels, device="cpu", workers=2)
    seconds = {x.id: x.seconds for x in statement.results}
    sys.stdout.write(listed(seconds, first_catches(tables)))
    return 0


def first_catches(tables: Iterable[str]) -> set[str]:
    """Give the cases that the tables name as the first to catch a fault."""
    return {case for table in tables for case in _CATCHES.findall(table)}


def listed(seconds: Mapping[str, float], kept: Collection[str]) -> str:
    """Give the list's text.

    Args:
        seconds: what each case took.
        kept: cases that are not listed, however long they take.
    """
    heavy = sorted(x for x, took in seconds.items() if took > HEAVY_S and x not in kept)
    return _HEAD + "".join(f"{x}\n" for x in heavy)


if __name__ == "__main__":
    sys.exit(main())
