"""How many patterns come near the memory's limit, of runs of ``patterns.py``.

    python benchmarks/limits.py RUN.json ... [--out FILE]

A pattern counts whose bytes take longer than its FLOP: over the bandwidth of a device copy, and
over the rate of a large matmul, as its run measured them. The aim is 85 % of that limit forward,
and 75 % forward and backward together, in rows whose name has ``_train``. A row's share is the
limit over the median of backbay's times; one that failed has none, and misses. All that miss are
listed, the furthest first, with Inductor's share.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from speed import arms
from speed.pattern_table import limit_us, times
from speed.record import Entry, describe

AIMS = {"forward": 0.85, "forward and backward": 0.75}


class _Document(msgspec.Struct):
    entries: tuple[Entry, ...]


def main() -> None:
    """Read, count, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="file for the text")
    given = parser.parse_args()
    read = [msgspec.json.decode(x.read_bytes(), type=_Document).entries for x in given.files]
    text = "# Patterns that memory limits\n\n" + "\n".join(map(section, read))
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


def section(entries: Sequence[Entry]) -> str:
    """Return one run's counts and rows."""
    days = sorted({run.created[:10] for x in entries for run in x.runs})
    lines = [f"{', '.join(days)}; {describe(entries[0].where)}", ""]
    for way, aim in AIMS.items():
        rows = [x for x in entries if _is_of(x, way)]
        known = {x.name: _share(x, arms.OURS) or 0.0 for x in rows}
        below = sorted((x for x in rows if known[x.name] < aim), key=lambda x: known[x.name])
        lines += [
            f"{way}, {aim:.0%}: **{len(known) - len(below)} of {len(known)}**",
            "",
            "| below | of the limit | Inductor |",
            "|---|---|---|",
            *(f"| {x.name} | {_shown(x, arms.OURS)} | {_shown(x, arms.INDUCTOR)} |" for x in below),
            "",
        ]
    return "\n".join(lines)


def _is_of(entry: Entry, way: str) -> bool:
    """Whether memory limits a row, and whether it has gradients as asked for."""
    if entry.limits is None or not entry.bytes_moved:
        return False
    moved = entry.bytes_moved / entry.limits.copy_bytes_s
    counted = (entry.flops or 0) / entry.limits.matmul_flops_s
    return moved > counted and ("_train/" in entry.name) == (way != "forward")


def _share(entry: Entry, arm: str) -> float | None:
    bound, taken = limit_us(entry), times(entry, arm)
    return None if bound is None or taken is None else bound / taken.median


def _shown(entry: Entry, arm: str) -> str:
    share = _share(entry, arm)
    return "not timed" if share is None else f"{share:.2f}"


if __name__ == "__main__":
    main()
