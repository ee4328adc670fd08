"""The table of whole models, from what is in the state folder. No torch here."""

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from backbay.errors import plain
from backbay.timing import stats
from speed import arms
from speed.judging import (
    Ratio,
    best,
    geometric_mean,
    latest,
    ratio,
    samples,
)
from speed.record import Entry, describe


class Listed(NamedTuple):
    """What must be known of a case without building it."""

    name: str
    train: bool
    masked: bool
    control: bool
    proof: bool


def listed(problems: Path | None = None) -> list[Listed]:
    """Return the cases, or a folder's problems, in the order that they are run and shown."""
    from speed.model_cases import CASES  # noqa: PLC0415 (imports torch)
    from speed.model_cases.problems import files, problem  # noqa: PLC0415

    cases = CASES if problems is None else [problem(str(x)) for x in files(problems)]
    return [Listed(x.name, x.train, x.masked, x.control, x.proof) for x in cases]


class Score(NamedTuple):
    """One workload's ratio for a mean; 1.0 where an arm failed."""

    name: str
    ratio: Ratio | None
    failed: str


def scores(
    entries: Sequence[Entry], found: Callable[[Entry], Ratio | None], ours: Sequence[str]
) -> list[Score]:
    """Return each workload that one of our arms was tried on; a failure counts as 1.0."""
    given = []
    for entry in entries:
        failed = _failure(entry, ours)
        value = None if failed else found(entry)
        if failed or value is not None:
            given.append(Score(entry.name, value, failed))
    return given


def mean(given: Sequence[Score]) -> float:
    """Return the geometric mean over scores."""
    return geometric_mean([x.ratio.value if x.ratio else 1.0 for x in given])


def text(entries: Sequence[Entry], total: int) -> str:
    """Write everything as markdown; there are so many workloads in all."""
    if not entries:
        return "Nothing was measured.\n"
    control = {x.name for x in listed() if x.control}
    rows = [_row(entry, control=entry.name in control) for entry in entries]
    return "\n".join(
        [
            "# Models",
            "",
            f"{dt.datetime.now(dt.UTC).date()}; {describe(entries[0].where)}; bfloat16.",
            "",
            *_summary(entries, total),
            "",
            _HEAD,
            *rows,
            "",
            *_arms(entries),
            "",
            *_rewrites(entries),
            "",
            *_notes(entries),
            "",
        ]
    )


def document(entries: Sequence[Entry]) -> bytes:
    """Return everything as JSON, with what was computed from the samples."""
    made: dict[str, Any] = {
        "entries": entries,
        "means": {what: {"mean": mean(x), "workloads": len(x)} for what, x in means(entries)},
    }
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


_HEAD = """\
| model | inputs | eager ms | inductor ms | backbay ms | inductor / backbay \
| best stock / backbay | by hand / backbay | GPU at work, ms, inductor, backbay \
| peak GiB, inductor, backbay | compile s, inductor, backbay | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def _row(entry: Entry, *, control: bool) -> str:
    if entry.problem:
        return f"| {entry.name} | | | | | not built: {plain(entry.problem)} | | | | | | |"
    over_best = best(entry, stock_of(entry), [arms.OURS])
    pair = (arms.INDUCTOR, arms.OURS)
    cells = [
        f"{entry.name}{' (control)' if control else ''}",
        entry.about,
        *(_time(entry, arm) for arm in (arms.EAGER, *pair)),
        _ratio(ratio(entry, *pair)),
        "" if over_best is None else f"{_ratio(over_best[1])} ({over_best[0]})",
        _ratio(ratio(entry, arms.HAND, arms.OURS)),
        ", ".join(_work(entry, arm) for arm in pair),
        ", ".join(_gib(entry, arm) for arm in pair),
        ", ".join(_seconds(entry, arm) for arm in pair),
        _verdict(entry),
    ]
    return f"| {' | '.join(cells)} |"


def stock_of(entry: Entry) -> list[str]:
    """Return the stock arms that were run, with CUDA graphs or not: Backbay decides about its own.

    By hand is no stock arm.
    """
    return sorted({arm for run in entry.runs for arm in run.arms if arms.stock(arm)})


def means(entries: Sequence[Entry]) -> list[tuple[str, list[Score]]]:
    """Return what a mean is over, in words, and each workload's score for it."""

    def over_best(entry: Entry) -> Ratio | None:
        found = best(entry, stock_of(entry), [arms.OURS])
        return found and found[1]

    def over_inductor(entry: Entry) -> Ratio | None:
        return ratio(entry, arms.INDUCTOR, arms.OURS)

    def over_hand(entry: Entry) -> Ratio | None:
        return ratio(entry, arms.HAND if latest(entry, arms.HAND) else arms.INDUCTOR, arms.OURS)

    control = {x.name for x in listed() if x.control}
    others = [x for x in entries if x.name not in control]
    ours = [arms.OURS]
    return [
        ("Inductor's default", scores(entries, over_inductor, ours)),
        ("Inductor's default, without the controls", scores(others, over_inductor, ours)),
        ("the best stock arm that was run", scores(entries, over_best, ours)),
        (
            "Inductor with masks taken away by hand, of models that have masks",
            scores([x for x in entries if latest(x, arms.HAND)], over_hand, ours),
        ),
        (
            "Inductor with masks taken away by hand where there are masks, of all models",
            scores(entries if any(latest(x, arms.HAND) for x in entries) else (), over_hand, ours),
        ),
    ]


def _summary(entries: Sequence[Entry], total: int) -> list[str]:
    head = (
        f"{len(entries)} of {total} workloads were run. Geometric means of a time over backbay's; "
        "a workload that fails counts as 1.0, an arm that was not run counts not at all:"
    )
    written = [
        f"- over {what}: **{mean(x):.3f}** ({len(x)} workloads)" for what, x in means(entries) if x
    ]
    pairs = [(x.name, found) for x in entries if (found := ratio(x, arms.INDUCTOR, arms.OURS))]
    return [
        head,
        "",
        *written,
        "",
        _list("certainly below 0.98 times Inductor's default", [n for n, x in pairs if x.slower]),
        _list("undecided, interval wider than ±1 %", [n for n, x in pairs if x.undecided]),
        _list(
            "failed", [f"{x.name} ({why})" for x in entries if (why := _failure(x, [arms.OURS]))]
        ),
    ]


def _arms(entries: Sequence[Entry]) -> list[str]:
    """Return a table of every arm's median: all that was timed."""
    names = sorted(
        {arm for x in entries for run in x.runs for arm in run.arms},
        key=lambda x: (x != "eager", x),
    )
    head = [f"| model | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows = [
        f"| {x.name} | {' | '.join(_time(x, arm) for arm in names)} |" for x in entries if x.runs
    ]
    return ["All arms, median ms with 95 % interval:", "", *head, *rows]


def _rewrites(entries: Sequence[Entry]) -> list[str]:
    """Return what was rewritten and replayed: without any, Inductor is compared with itself."""
    ours = ((x.name, latest(x, arms.OURS)) for x in entries)
    said = [f"- {name}: {', '.join(last.notes)}" for name, last in ours if last and last.notes]
    return [
        "What was rewritten, and what was decided about CUDA graphs:",
        "",
        *(said or ["- not kept"]),
    ]


def _notes(entries: Sequence[Entry]) -> list[str]:
    """Return whatever went wrong, and how far from eager the results at full size were."""
    found = []
    for entry in entries:
        known = {arm for run in entry.runs for arm in run.arms}
        for arm in sorted(known):
            last = latest(entry, arm)
            if last is not None and last.status != "ok":
                found.append(f"- {entry.name}, {arm}: {last.status}: {plain(last.reason)}")
        found += [
            f"- {entry.name}, {arm}: proof: {plain(x.reason)}"
            for arm, x in entry.verdicts.items()
            if not x.passed
        ]
    return ["What went wrong:", "", *(found or ["- nothing"])]


def _failure(entry: Entry, ours: Sequence[str]) -> str:
    if entry.problem:
        return "not built"
    for arm in ours:
        last, verdict = latest(entry, arm), entry.verdicts.get(arm)
        if last is not None and last.status != "ok":
            return f"{arm} {last.status}"
        if verdict is not None and not verdict.passed:
            return f"{arm} wrong"
    return ""


def _verdict(entry: Entry) -> str:
    verdict, last = entry.verdicts.get(arms.OURS), latest(entry, arms.OURS)
    near = "" if last is None or last.error is None else f"; {last.error:.2g} from eager"
    if verdict is None:
        return f"not proven{near}"
    return f"{'right' if verdict.passed else '**wrong**'} at {verdict.about}{near}"


def _time(entry: Entry, arm: str) -> str:
    values = samples(entry, arm)
    if not values:
        last = latest(entry, arm)
        return "" if last is None else last.status
    median, (low, high) = stats.median(values)
    return f"{median:.4g} [{low:.4g}, {high:.4g}]"


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"{found}{' **slower**' if found.slower else ''}{' ?' if found.undecided else ''}"


def _gib(entry: Entry, arm: str) -> str:
    last = latest(entry, arm)
    return "-" if last is None or last.peak_bytes is None else f"{last.peak_bytes / 2**30:.2f}"


def _work(entry: Entry, arm: str) -> str:
    known = [x.work for run in entry.runs if (x := run.arms.get(arm)) is not None and x.work]
    return f"{known[-1].busy_ms:.4g} in {known[-1].launches}" if known else "-"


def _seconds(entry: Entry, arm: str) -> str:
    known: list[float] = [
        x.compile_s
        for run in entry.runs
        if (x := run.arms.get(arm)) is not None and x.compile_s is not None
    ]
    return f"{known[0]:.1f}" if known else "-"


def _list(what: str, names: Sequence[str]) -> str:
    return f"- {what}: {', '.join(names) if names else 'none'}"
