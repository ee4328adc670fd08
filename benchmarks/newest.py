"""Whole models of several runs of ``models.py``: of each the newest, and means over all.

    python benchmarks/newest.py RUN.json [LATER.json ...] [--autotuned RUN.json ...]
        [--by-hand RUN.json ...] [--out FILE]

Files are named from the oldest to the newest. A workload's row is of the last file in which
Inductor and Backbay were timed side by side on it; what was proven of it is of the last file that
has a proof. No two runs' times are mixed.

To autotune takes minutes a model, so few runs have it. --autotuned names runs that timed it beside
Inductor's default. The share of the default's time that it took in the newest of them, on whichever
GPU, is taken for what it would take here. The table has these shares, says of how many workloads
none is known, and how much autotuning would have to gain in these for the aim to be missed.

--by-hand names runs that timed Inductor on models whose masks were taken away by hand, and
Backbay beside it. The mean uses the newest such run for these models, and Inductor's default for
all others; it names those with masks that have no such run.

Where ``reduce-overhead`` takes less than 0.95 of the default's time, a last table has the share of
what it saves that Backbay saves, by the last file with a run that timed all three, from such runs
alone. The ends of its interval are made of the two ratios' ends, so it is wide.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from speed import arms, model_table
from speed.judging import Ratio, best, geometric_mean, latest, ratio
from speed.record import Entry, Sampled, describe


class Run(NamedTuple):
    """One file's."""

    name: str
    entries: tuple[Entry, ...]


class Newest(NamedTuple):
    """What is known last of a workload."""

    run: str
    entry: Entry
    proven: str
    """In words, and the run that it is of; empty if it was not."""


AUTOTUNED = f"{arms.INDUCTOR}:max-autotune-no-cudagraphs"
AIM = 1.15
"""Of the mean over each model's fastest mode of Inductor, autotuning among them."""
GRAPHS = f"{arms.INDUCTOR}:reduce-overhead"
SAVES = 0.05
"""Of the default's time, what `GRAPHS` has to save at least for a workload to be looked at."""
SAVED = 0.85
"""Aim: of what it saves."""


class _Document(msgspec.Struct):
    entries: tuple[Entry, ...]


def main() -> None:
    """Read, choose, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="from the oldest to the newest")
    parser.add_argument(
        "--autotuned", nargs="+", type=Path, default=[], help="likewise, with autotuning"
    )
    parser.add_argument(
        "--by-hand", nargs="+", type=Path, default=[], help="likewise, without masks by hand"
    )
    parser.add_argument("--out", type=Path, help="file for the table")
    given = parser.parse_args()
    text = table(*([read(x) for x in y] for y in (given.files, given.autotuned, given.by_hand)))
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


def read(path: Path) -> Run:
    """Read the JSON that models.py wrote."""
    return Run(path.stem, msgspec.json.decode(path.read_bytes(), type=_Document).entries)


def chosen(runs: Sequence[Run]) -> Mapping[str, Newest]:
    """Return the newest of each workload, in the order of the table."""
    found: dict[str, Newest] = {}
    for run in runs:
        for entry in run.entries:
            known = found.get(entry.name)
            proven = known.proven if known else ""
            verdict = entry.verdicts.get(arms.OURS)
            if verdict is not None:
                said = "right" if verdict.passed else "**wrong**"
                proven = f"{said} at {verdict.about} ({run.name})"
            if ratio(entry, arms.INDUCTOR, arms.OURS) is not None:
                found[entry.name] = Newest(run.name, entry, proven)
            elif known is not None:
                found[entry.name] = known._replace(proven=proven)
    order = [x.name for x in model_table.listed()]
    return {name: found[name] for name in order if name in found}


def table(runs: Sequence[Run], autotuned: Sequence[Run] = (), by_hand: Sequence[Run] = ()) -> str:
    """Write everything as markdown."""
    rows, total, shares = chosen(runs), len(model_table.listed()), _shares(autotuned)
    entries = [x.entry for x in rows.values()]
    means = model_table.means(entries)[:3]
    pairs = [(name, _over_inductor(x.entry)) for name, x in rows.items()]
    return "\n".join(
        [
            "# Models, of each the newest run",
            "",
            *(f"- `{run.name}`: {describe(run.entries[0].where)}" for run in runs),
            "",
            f"{len(rows)} of {total} workloads; geometric means of a time over backbay's:",
            "",
            *(f"- over {what}: **{model_table.mean(x):.3f}** ({len(x)})" for what, x in means),
            *_by_kind(entries),
            *(_over_autotuned(entries, shares) if shares else ()),
            *(_over_by_hand(entries, by_hand) if by_hand else ()),
            f"- certainly below 0.98: {_names(n for n, x in pairs if x.slower)}",
            f"- undecided, wider than ±1 %: {_names(n for n, x in pairs if x.undecided)}",
            "",
            "| model | run | inductor / backbay | best stock / backbay | rewrites | verdict |",
            "|---|---|---|---|---|---|",
            *(_row(name, x) for name, x in rows.items()),
            *(_share_table(shares) if shares else ()),
            *_saved_table(runs),
            "",
        ]
    )


def _by_kind(entries: Sequence[Entry]) -> list[str]:
    """Return the means of inference and of training, and of how long the GPU is at work."""
    trains = {x.name for x in model_table.listed() if x.train}
    over = {x.name: _over_inductor(x).value for x in entries}
    at_work = [found for x in entries if (found := _work_over_ours(x)) is not None]
    kinds = {
        "over Inductor's default, of inference": [x for n, x in over.items() if n not in trains],
        "over Inductor's default, of training": [x for n, x in over.items() if n in trains],
        "time that the GPU is at work, of Inductor's default over backbay's": at_work,
    }
    return [f"- {kind}: **{geometric_mean(x):.3f}** ({len(x)})" for kind, x in kinds.items() if x]


def _work_over_ours(entry: Entry) -> float | None:
    last = [latest(entry, x) for x in (arms.INDUCTOR, arms.OURS)]
    theirs, ours = (x.work.busy_ms if x and x.work else None for x in last)
    return theirs / ours if theirs and ours else None


class _Share(NamedTuple):
    """What autotuning took of the default's time."""

    over_default: Ratio
    where: str


def _shares(runs: Sequence[Run]) -> Mapping[str, _Share]:
    """Return the newest share of each workload that was autotuned beside the default."""
    found = {}
    for run in runs:
        for entry in run.entries:
            share = ratio(entry, AUTOTUNED, arms.INDUCTOR)
            if share is not None:
                found[entry.name] = _Share(share, describe(entry.where))
    return found


def _over_autotuned(entries: Sequence[Entry], shares: Mapping[str, _Share]) -> list[str]:
    """Return the lines about the mean over the fastest arm, autotuning among them."""
    over, unknown = [], []
    for entry in entries:
        fastest = best(entry, model_table.stock_of(entry), [arms.OURS])
        over.append((fastest[1] if fastest else _over_inductor(entry)).value)
        if ratio(entry, AUTOTUNED, arms.OURS) is not None:
            continue  # it is one of the stock arms
        if entry.name in shares:
            tuned = shares[entry.name].over_default.value * _over_inductor(entry).value
            over[-1] = min(over[-1], tuned)
        else:
            unknown.append(entry.name)
    mean = geometric_mean(over)
    of = f"{len(entries) - len(unknown)} of {len(entries)} workloads"
    known_as = "the fastest stock arm, and autotuning as it was beside the default in other runs"
    lines = [f"- over {known_as} ({of}): **{mean:.3f}**"]
    if unknown and mean > AIM:
        needed = (mean / AIM) ** (len(entries) / len(unknown))
        gain = f"{needed:.2f} times as fast as the fastest stock arm, in the mean of the others"
        lines.append(f"- below {AIM} only if autotuning is {gain}: {_names(unknown)}")
    return lines


def _over_by_hand(entries: Sequence[Entry], runs: Sequence[Run]) -> list[str]:
    """Return the line about the mean over Inductor without masks, where models have some."""
    masked = {x.name for x in model_table.listed() if x.masked}
    over = {x.name: _over_inductor(x) for x in entries}
    found = {
        entry.name: each
        for run in runs
        for entry in run.entries
        if entry.name in over and (each := ratio(entry, arms.HAND, arms.OURS)) is not None
    }
    mean, alone = (
        geometric_mean([x.value for x in y.values()]) for y in ({**over, **found}, found)
    )
    unknown = [name for name in over if name in masked and name not in found]
    all_of = f"with masks taken away by hand where there are masks: **{mean:.3f}** ({len(over)})"
    some = f"of models with masks alone: **{alone:.3f}** ({len(found)})"
    return [
        f"- over Inductor, {all_of}; {some}; not timed, so the default counts: {_names(unknown)}",
        *(f"    - {name}: {x}" for name, x in found.items()),
    ]


def _share_table(shares: Mapping[str, _Share]) -> list[str]:
    rows = (f"| {name} | {x.over_default} | {x.where} |" for name, x in shares.items())
    return ["", "| model | autotuning / default | where |", "|---|---|---|", *rows]


def _saved_table(runs: Sequence[Run]) -> list[str]:
    """Return of each workload that `GRAPHS` makes faster how much of that is saved here."""
    rows = {}
    for run in runs:
        for entry in map(_of_all_three, run.entries):
            theirs = ratio(entry, arms.INDUCTOR, GRAPHS)
            ours = ratio(entry, arms.INDUCTOR, arms.OURS)
            if theirs is not None and ours is not None and _saves(theirs.value) > SAVES:
                rows[entry.name] = f"{run.name} | {theirs} | {ours} | {_part(ours, theirs)}"
    if not rows:
        return []
    head = f"| model | run | inductor / {GRAPHS} | inductor / backbay | saved, aim {SAVED} |"
    return ["", head, "|---|---|---|---|---|", *(f"| {n} | {x} |" for n, x in rows.items())]


def _of_all_three(entry: Entry) -> Entry:
    """Return an entry with those runs alone that timed Inductor's two modes and ours."""
    named = (arms.INDUCTOR, GRAPHS, arms.OURS)
    runs = tuple(x for x in entry.runs if all(_is_timed(x.arms.get(y)) for y in named))
    alone: Entry = msgspec.structs.replace(entry, runs=runs)
    return alone


def _is_timed(arm: Sampled | None) -> bool:
    return arm is not None and bool(arm.samples_ms)


def _part(ours: Ratio, theirs: Ratio) -> Ratio:
    """Return the part that ours saves of what theirs saves."""
    value = _saves(ours.value) / _saves(theirs.value)
    if theirs.low <= 1:  # it may save nothing
        return Ratio(value=value, low=-math.inf, high=math.inf)
    ends = [_saves(x) / _saves(y) for x in (ours.low, ours.high) for y in (theirs.low, theirs.high)]
    return Ratio(value=value, low=min(ends), high=max(ends))


def _saves(ratio: float) -> float:
    """Return the part of a time that is saved, by how much faster it goes."""
    return 1 - 1 / ratio


def _row(name: str, newest: Newest) -> str:
    entry = newest.entry
    over_best = best(entry, model_table.stock_of(entry), [arms.OURS])
    last = latest(entry, arms.OURS)
    cells = [
        name,
        newest.run,
        str(_over_inductor(entry)),
        "" if over_best is None else f"{over_best[1]} ({over_best[0]})",
        ", ".join(last.notes) if last else "",
        newest.proven or "not proven",
    ]
    return f"| {' | '.join(cells)} |"


def _over_inductor(entry: Entry) -> Ratio:
    found = ratio(entry, arms.INDUCTOR, arms.OURS)
    assert found is not None  # it would not have been chosen
    return found


def _names(found: Iterable[str]) -> str:
    return ", ".join(found) or "none"


if __name__ == "__main__":
    main()
