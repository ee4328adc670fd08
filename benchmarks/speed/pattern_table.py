"""The table of patterns, from what is in the state folder."""

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from backbay.errors import plain
from backbay.timing import stats
from speed import arms
from speed.judging import Ratio, best, geometric_mean, latest, ratio, samples
from speed.record import Entry, describe

_MOST = 0.85
"""Of its limit: what reaches it has nothing to give."""


class Listed(NamedTuple):
    """What must be known of a row without building it."""

    name: str
    alternative: bool


def listed(*, tiny: bool) -> list[Listed]:
    """Return a row for each shape of each pattern, in order."""
    from speed.pattern_cases import PATTERNS  # noqa: PLC0415 (imports torch)

    return [
        Listed(f"{pattern.name}/{size}", pattern.alternative)
        for pattern in PATTERNS
        for size in pattern.sizes(tiny=tiny)
    ]


class Times(NamedTuple):
    """One arm's microseconds."""

    median: float
    low: float
    high: float


def times(entry: Entry, arm: str) -> Times | None:
    """Return an arm's median and its interval."""
    values = samples(entry, arm)
    if not values:
        return None
    median, (low, high) = stats.median(values)
    return Times(1e3 * median, 1e3 * low, 1e3 * high)


def limit_us(entry: Entry) -> float | None:
    """Return the least time that bytes and FLOP allow on this device."""
    if entry.limits is None:
        return None
    moved = (entry.bytes_moved or 0) / entry.limits.copy_bytes_s
    counted = (entry.flops or 0) / entry.limits.matmul_flops_s
    return 1e6 * max(moved, counted)


def brief(entry: Entry) -> str:
    """Return a row's outcome in one line."""
    cells = [
        f"{arm} {found.median:.1f}"
        for arm in _known(entry)
        if (found := times(entry, arm)) is not None
    ]
    bound = limit_us(entry)
    between = ratio(entry, arms.INDUCTOR, arms.OURS)
    limit = "" if bound is None else f", limit {bound:.1f}"
    return f"{entry.name}: {', '.join(cells)}{limit} µs; inductor/backbay {between or 'not timed'}"


def text(entries: Sequence[Entry]) -> str:
    """Write everything as markdown."""
    if not entries:
        return "Nothing was measured.\n"
    names = sorted({x for e in entries for x in _known(e)}, key=_order)
    columns = [
        "pattern",
        *names,
        "limit",
        "inductor / backbay",
        "best stock / backbay",
        "GB/s",
        "TFLOP/s",
        "of the limit",
    ]
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines = [
        "# Patterns",
        "",
        f"{dt.datetime.now(dt.UTC).date()}; {describe(entries[0].where)}; bfloat16.",
        _limits(entries),
        "",
        *_summary(entries),
        "",
        "Microseconds, median with 95 % interval. Rates and the share of the limit are backbay's.",
        "",
        *head,
        *(_row(entry, names) for entry in entries),
        "",
        *_notes(entries),
        "",
    ]
    return "\n".join(lines)


def document(entries: Sequence[Entry]) -> bytes:
    """Return everything as JSON, with what was computed from the samples."""
    made: dict[str, Any] = {"entries": entries, "means": dict(_means(entries))}
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def _row(entry: Entry, names: Sequence[str]) -> str:
    if entry.problem:
        return f"| {entry.name} | not built: {plain(entry.problem)} |{' |' * (len(names) + 5)}"
    bound, ours = limit_us(entry), times(entry, arms.OURS)
    over_best = _over_best(entry)
    cells = [
        entry.name,
        *(_time(entry, arm) for arm in names),
        "" if bound is None else f"{bound:.1f}",
        _ratio(ratio(entry, arms.INDUCTOR, arms.OURS)),
        "" if over_best is None else f"{_ratio(over_best[1])} ({over_best[0]})",
        _rate(entry.bytes_moved, ours, 1e-3),
        _rate(entry.flops, ours, 1e-6),
        "" if bound is None or ours is None else f"{bound / ours.median:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _over_best(entry: Entry) -> tuple[str, Ratio] | None:
    stock = [x for x in _known(entry) if arms.stock(x)]
    return best(entry, stock, [x for x in _known(entry) if arms.ours(x)])


def _means(entries: Sequence[Entry]) -> list[tuple[str, float]]:
    """Return geometric means of a time over backbay's; a failure of backbay's counts as 1.0."""
    tried = [x for x in entries if latest(x, arms.OURS) is not None]
    found: list[tuple[str, float]] = []
    for arm in sorted({x for e in tried for x in _known(e)} - {arms.OURS}, key=_order):
        pairs = [ratio(e, arm, arms.OURS) for e in tried if latest(e, arm) is not None]
        found.append((arm, geometric_mean([x.value if x else 1.0 for x in pairs])))
    bests = [_over_best(e) for e in tried]
    found.append(("the best stock arm", geometric_mean([x[1].value if x else 1.0 for x in bests])))
    return found


def _summary(entries: Sequence[Entry]) -> list[str]:
    pairs = [(x.name, y) for x in entries if (y := ratio(x, arms.INDUCTOR, arms.OURS))]
    near = [
        x.name
        for x in entries
        if (t := times(x, arms.OURS)) and (b := limit_us(x)) and b >= _MOST * t.median
    ]
    return [
        f"{len(entries)} rows. Geometric means of a time over backbay's; a failure counts as 1.0:",
        "",
        *(f"- over {arm}: **{value:.3f}**" for arm, value in _means(entries)),
        "",
        _list("certainly below 0.98 times Inductor's default", [n for n, x in pairs if x.slower]),
        _list("undecided, interval wider than ±1 %", [n for n, x in pairs if x.undecided]),
        _list(f"backbay at {_MOST:.0%} of the limit or more", near),
    ]


def _limits(entries: Sequence[Entry]) -> str:
    found = [x.limits for x in entries if x.limits is not None]
    if not found:
        return ""
    copies = [x.copy_bytes_s / 1e12 for x in found]
    products = [x.matmul_flops_s / 1e12 for x in found]
    return (
        f"Device copy {min(copies):.3g} to {max(copies):.3g} TB/s, matmul "
        f"{min(products):.4g} to {max(products):.4g} TFLOP/s, over the runs."
    )


def _notes(entries: Sequence[Entry]) -> list[str]:
    found = []
    for entry in entries:
        for arm in _known(entry):
            last = latest(entry, arm)
            if last is None:
                continue
            if last.status != "ok":
                found.append(f"- {entry.name}, {arm}: {last.status}: {plain(last.reason)}")
            found += [f"- {entry.name}, {arm}: {plain(note)}" for note in last.notes]
    return ["Notes:", "", *(found or ["- none"])]


def _known(entry: Entry) -> list[str]:
    return sorted({arm for run in entry.runs for arm in run.arms}, key=_order)


def _order(arm: str) -> tuple[int, str]:
    first = (arms.EAGER, arms.INDUCTOR)
    return (first.index(arm) if arm in first else len(first) + arms.ours(arm), arm)


def _time(entry: Entry, arm: str) -> str:
    found, last = times(entry, arm), latest(entry, arm)
    if found is None:
        return "" if last is None else last.status
    return f"{found.median:.4g} [{found.low:.4g}, {found.high:.4g}]"


def _rate(amount: int | None, found: Times | None, scale: float) -> str:
    return f"{scale * amount / found.median:.4g}" if amount and found else ""


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"{found}{' **slower**' if found.slower else ''}{' ?' if found.undecided else ''}"


def _list(what: str, names: Sequence[str]) -> str:
    return f"- {what}: {', '.join(names) if names else 'none'}"
