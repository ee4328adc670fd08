"""Which seeded faults the suite catches, fault by level.

    python packages/backbay-conformance/tests/kill_table.py [--profile full] [--markdown FILE]

A fault is put to the level that must catch it and to ``contract``; where neither does, ``quick``
goes on to every other level until one does. Each level ends at the first case that is held against
the backend. The good backends that the faults are put into have the ``quick`` share in either
profile: their whole runs are those of torch's own backends, which have statements.
"""

import argparse
import datetime as dt
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from backbay.registry import default_registry
from backbay.reporting import machine
from backbay_conformance import pool
from backbay_conformance.api import conform
from backbay_conformance.record import LEVELS, Profile, Result, Statement

QUICK_BAR, FULL_BAR = 0.95, 1.0
"""Shares of the faults that are not equivalent: caught by any level in ``quick``, and in ``full``
by the level that is named."""
_WHERE = "mutants"
_SCRIPT = "packages/backbay-conformance/tests/kill_table.py"
_HERE = str(Path(__file__).parent)
"""Where child processes find them."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one level made of one fault."""

    cases: int
    """How many were run, to the first failure."""
    seconds: float
    caught_by: str = ""
    """Id of the first case that failed; empty where none did."""
    status: str = ""
    reason: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite made of one fault."""

    name: str
    family: str
    fault: str
    level: str
    """The level that must catch it."""
    link: str = ""
    equivalent: str = ""
    held_out: bool = False
    cells: dict[str, Cell] = {}
    """By level; those that were run."""

    @property
    def caught(self) -> bool:
        """Whether any level that was run catches it."""
        return any(x.caught_by for x in self.cells.values())

    @property
    def caught_as_named(self) -> bool:
        """Whether the level that must catch it does."""
        return self.level in self.cells and bool(self.cells[self.level].caught_by)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite made of all faults, and of the good backends that they were made from."""

    profile: Profile
    rows: tuple[Row, ...]
    twins: dict[str, tuple[str, ...]]
    """Of each good backend, the cases that failed: there should be none."""
    setting: str = ""
    """When it was made, on what, with which versions."""

    def counts(self, *, held_out: bool | None = None) -> tuple[int, int]:
        """Return how many faults are caught, and how many should be, equivalent ones apart.

        Args:
            held_out: those set aside, the others, or (None) both.
        """
        rows = [x for x in self.rows if not x.equivalent and held_out in {None, x.held_out}]
        return sum(self._counts(x) for x in rows), len(rows)

    def rate(self, *, held_out: bool | None = None) -> float:
        """Return the share that is caught of what should be; 1 where there is nothing to catch."""
        caught, total = self.counts(held_out=held_out)
        return caught / total if total else 1.0

    def missed(self) -> list[Row]:
        """Return the faults that should be caught and are not."""
        return [x for x in self.rows if not x.equivalent and not self._counts(x)]

    def missed_bars(self) -> Iterator[str]:
        """Return which bars do not hold."""
        bar = QUICK_BAR if self.profile == "quick" else FULL_BAR
        if self.rate() < bar:
            yield f"{self.rate():.1%} of the faults are caught, and {bar:.0%} must be"
        for name, failed in self.twins.items():
            if failed:
                yield f"{name}, which is good, fails {len(failed)} cases, the first {failed[0]}"
        for row in self.rows:
            if row.equivalent and row.caught:
                yield f"{row.name} is argued to be equivalent, and is caught"

    def _counts(self, row: Row) -> bool:
        return row.caught if self.profile == "quick" else row.caught_as_named


def order(named: str, present: Sequence[str]) -> list[str]:
    """Return the levels in the order in which a fault is put to them."""
    first = [x for x in dict.fromkeys((named, "contract")) if x in present]
    return [*first, *(x for x in present if x not in first)]


def present_levels() -> list[str]:
    """Return the levels that this version of the suite has."""
    return [x for x in LEVELS if importlib.util.find_spec(f"backbay_conformance.levels.{x}")]


def row_of(name: str, *, profile: Profile, device: str, seed: int, levels: Sequence[str]) -> Row:
    """Put one fault to the suite."""
    from mutants.catalog import MUTANTS

    mutant, cells = MUTANTS[name], dict[str, Cell]()
    for level in order(mutant.level, levels):
        owed = level in {mutant.level, "contract"}
        further = profile == "quick" and not mutant.equivalent
        if not owed and (not further or any(x.caught_by for x in cells.values())):
            continue
        statement = conform(
            f"{_WHERE}:{name}",
            profile=profile,
            levels=[level],
            device=device,
            seed=seed,
            workers=1,
            stop_on_failure=True,
        )
        cells[level] = cell_of(statement)
    return Row(
        name=name,
        family=mutant.family,
        fault=mutant.fault,
        level=mutant.level,
        link=mutant.link,
        equivalent=mutant.equivalent,
        held_out=mutant.held_out,
        cells=cells,
    )


def cell_of(statement: Statement) -> Cell:
    """Return what one level made of a fault, from a statement that ends at a failure."""
    failed = first_failure(statement.results)
    return Cell(
        cases=len(statement.results),
        seconds=round(statement.seconds, 1),
        caught_by="" if failed is None else failed.id,
        status="" if failed is None else failed.status,
        reason="" if failed is None else failed.reason,
    )


def first_failure(results: Iterable[Result]) -> Result | None:
    """Return the first result that is held against the backend, in the order of the cases."""
    return next((x for x in results if x.failed), None)


def markdown(table: Table) -> str:
    """Word the table as a page of Markdown: the rates, then fault by level."""
    ran = [x for x in LEVELS if any(x in row.cells for row in table.rows)]
    lines = [
        f"# Seeded faults, and the levels that catch them: `{table.profile}`",
        "",
        f"`python {_SCRIPT} --profile {table.profile}`; {table.setting}",
        "",
        *summary(table),
        "",
        "A level in bold is the one that must catch the fault; one without a word was not asked.",
        "",
        f"| fault | family | {' | '.join(ran)} | first case |",
        f"|---|---|{'---|' * len(ran)}---|",
    ]
    lines += [_line(row, ran) for row in table.rows]
    return "\n".join([*lines, ""])


def _line(row: Row, ran: Sequence[str]) -> str:
    marks = [_mark(row, x) for x in ran]
    first = next((x for x in row.cells.values() if x.caught_by), None)
    case = "" if first is None else f"`{first.caught_by}` ({first.status})"
    name = f"[{row.name}]({row.link})" if row.link else row.name
    kind = f"{row.family}{', set aside' if row.held_out else ''}"
    return f"| {name} | {kind} | {' | '.join(marks)} | {case or row.equivalent} |"


def _mark(row: Row, level: str) -> str:
    cell = row.cells.get(level)
    if cell is None:
        return ""
    mark = "caught" if cell.caught_by else "no"
    return f"**{mark}**" if level == row.level else mark


def summary(table: Table) -> list[str]:
    """Word the rates, the equivalent faults and the good backends; one line each."""
    lines = []
    for what, held_out in (
        ("all", None),
        ("known to writers of levels", False),
        ("set aside", True),
    ):
        caught, total = table.counts(held_out=held_out)
        rate = table.rate(held_out=held_out)
        lines.append(f"- {table.profile}, {what}: {caught} of {total} caught ({rate:.1%}).")
    if table.profile == "full":
        owed = [x for x in table.rows if not x.equivalent]
        anyhow = sum(x.caught for x in owed)
        lines.append(f"- That is by the level that must; by any level: {anyhow} of {len(owed)}.")
    equivalent = [x for x in table.rows if x.equivalent]
    seen = sum(x.caught for x in equivalent)
    lines.append(f"- Equivalent, counted in none of these: {len(equivalent)}; caught: {seen}.")
    wrong = [x for x in table.rows if x.caught and not x.caught_as_named and not x.equivalent]
    lines.append(f"- Caught by another level than the one named: {_names(wrong)}.")
    lines.append(f"- Missed: {_names(table.missed())}.")
    for name, failed in table.twins.items():
        lines.append(f"- {name}: {len(failed)} failures{', ' + failed[0] if failed else ''}.")
    return lines


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(x.name for x in rows) or "none"


def make_table(
    names: Sequence[str],
    *,
    profile: Profile,
    device: str,
    seed: int,
    side_by_side: int,
    before: Table | None = None,
    again: Collection[str] = (),
) -> Table:
    """Put faults and good backends to the suite, some at a time.

    Args:
        names: of the faults.
        profile: which cases.
        device: as torch spells it.
        seed: of the choice and of everything random.
        side_by_side: so many at a time.
        before: an earlier table of the same seed, of either profile. What the named level caught
            there is not run again, as ``full`` has every case of ``quick``, nor are good backends.
        again: names of those of ``before`` that alone are run again; default: the others.
    """
    from mutants.good import GOOD_TWINS

    levels = present_levels()
    kept = {
        x.name: x
        for x in (before.rows if before is not None else ())
        if (x.name not in again if again else x.caught_as_named)
    }

    def row(name: str) -> Row:
        if name in kept:
            return kept[name]
        found = row_of(name, profile=profile, device=device, seed=seed, levels=levels)
        _say(f"{'caught' if found.caught else 'missed'}  {name}")
        return found

    def twin(name: str) -> tuple[str, ...]:
        statement = conform(f"{_WHERE}:{name}", device=device, seed=seed, workers=1)
        failed = tuple(x.id for x in statement.results if x.failed)
        _say(f"{len(failed)} failures  {name}")
        return failed

    with ThreadPoolExecutor(side_by_side) as threads:
        twins = threads.map(twin, GOOD_TWINS if before is None else ())
        rows = tuple(threads.map(row, names))
        failed = before.twins if before is not None else dict(zip(GOOD_TWINS, twins, strict=True))
        return Table(profile=profile, rows=rows, twins=failed, setting=_setting(device))


def _setting(device: str) -> str:
    here = machine.machine(device)
    versions = machine.versions(default_registry.environment, [])
    on = ", ".join(f"{name} {version}" for name, version in versions.items())
    today = dt.datetime.now(dt.UTC).date()
    return f"{today}, {on}; {here.processor}, {here.cores} cores, {device}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table; 1 where a bar does not hold."""
    from mutants.catalog import MUTANTS

    given = _parser().parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join([_HERE, os.environ.get("PYTHONPATH", "")])
    unknown = [x for x in given.only if x not in MUTANTS]
    if unknown:
        _say(f"there is no seeded fault {unknown[0]!r}")
        return 2
    names = list(MUTANTS) if given.before is not None else given.only or list(MUTANTS)
    table = make_table(
        names,
        profile=given.profile,
        device=given.device,
        seed=given.seed,
        side_by_side=given.workers,
        before=given.before and msgspec.json.decode(given.before.read_bytes(), type=Table),
        again=given.only,
    )
    if given.markdown is not None:
        given.markdown.write_text(markdown(table), encoding="utf-8")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(table)))
    bars = list(table.missed_bars())
    for line in [*summary(table), *bars]:
        _say(line)
    return 1 if bars else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python packages/backbay-conformance/tests/kill_table.py")
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=pool.usual_workers(), help="side by side")
    parser.add_argument("--before", type=Path, metavar="FILE", help="an earlier table, as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
