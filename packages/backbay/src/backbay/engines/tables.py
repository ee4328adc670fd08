"""What became of engines, as Markdown and as a table in the terminal."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from backbay.engines.record import MODELS, USES, WORKLOADS, Report, Row
from backbay.errors import plain
from backbay.reporting import terminal, wording

_NOT_TRIED = "·"
_HEAD = """
made this page on {when}, on {processor}, {cores}: each engine in a virtual environment of its own,
installed by the line in the catalogue. It is not edited by hand. {nothing} stands for what was not
tried.
"""
_USES = """
Each of {models}, in {uses}, as `backbay verify` finds it. What is right is proven against float64.
"""
_SPEED = """
Eager's time over the backend's in inference, then inductor's, with 95 % intervals, as
`backbay race` finds them: above 1 is faster. A backend that is wrong or fails has no time. Then how
many of the model's operators it runs itself, and does not leave to torch's kernels.
"""
_WIDTH = 100


def markdown(report: Report) -> str:
    """Return the page of a report; the same report always gives the same text."""
    head = _HEAD.format(
        when=report.created[:10],
        processor=plain(report.machine.processor),
        cores=wording.counted(report.machine.cores, "core"),
        nothing=_NOT_TRIED,
    )
    uses = _USES.format(models=wording.listed(list(MODELS)), uses=wording.listed(list(USES)))
    parts = [
        f"# Engines beside torch {report.torch}\n\n```sh\n{report.command}\n```\n\n",
        _wrapped(head),
        *(["\nInterrupted: what is missing was not tried.\n"] if report.partial else []),
        "\n## Installed\n\n",
        *_table(
            ("backend", "installed by", "versions", "loads and compiles", "as catalogued"),
            [
                (f"`{x.backend}`", f"`{x.install}`", _versions(x), _state(x), _catalogued(x))
                for x in report.rows
            ],
        ),
        f"\n## What works\n\n{_wrapped(uses)}\n",
        *_table(
            ("backend", *(f"{model}, {use}" for model in MODELS for use in USES), "conformance"),
            [(f"`{x.backend}`", *_cases(x), _conformance(x)) for x in _working(report)],
        ),
        f"\n## How fast\n\n{_wrapped(_SPEED)}\n",
        *_table(
            ("backend", *WORKLOADS),
            [(f"`{x.backend}`", *_speeds(x)) for x in _working(report)],
        ),
        *(["\n"] if report.notes else []),
        *(_item(note) for note in report.notes),
        "\n## Why not\n\n",
        *(_item(f"`{x.backend}`: {why}") for x in report.rows for why in reasons(x)),
    ]
    return "".join(parts)


def table(report: Report) -> RenderableType:
    """Lay a report out for the terminal."""
    made = terminal.table("backend", "state", "right", *WORKLOADS)
    for row in report.rows:
        right = [case.status == "right" for case in row.cases]
        count = f"{sum(right)} of {len(right)}" if right else _NOT_TRIED
        terminal.add_row(made, (row.backend, _state(row), count, *_speeds(row)))
    parts: list[RenderableType] = [made]
    parts += [terminal.line(f"{x.backend}: {why}") for x in report.rows for why in reasons(x)]
    if report.partial:
        parts.append(terminal.line("interrupted: what is missing was not tried"))
    return Group(*parts)


def reasons(row: Row) -> Iterator[str]:
    """Yield why a backend could not be tried, or what of it is not right; equal ones once."""
    if row.why_not:
        yield f"not installed: {row.why_not}"
    if row.loaded is not None and not row.loaded.works:
        error = f"{row.loaded.error}; " if row.loaded.error else f"{row.loaded.reason}; "
        yield f"{error}{row.loaded.remedy}"
    said: dict[str, list[str]] = {}
    for case in row.cases:
        if case.status not in {"right", "not_tried"}:  # that is for what another case says
            said.setdefault(f"{case.status}: {case.reason}", []).append(f"{case.model}, {case.use}")
    for speed in row.speeds:
        if speed.status != "ok":
            said.setdefault(f"{speed.status}: {speed.reason}", []).append(speed.workload)
    yield from (f"{'; '.join(where)}: {why}" for why, where in said.items())


def _working(report: Report) -> list[Row]:
    return [x for x in report.rows if x.loaded is not None and x.loaded.works]


def _state(row: Row) -> str:
    if row.installed != "yes":
        return {"no": "not installable", "not tried": _NOT_TRIED}[row.installed]
    if row.loaded is None:
        return _NOT_TRIED
    return "yes" if row.loaded.works else f"no ({row.loaded.state})"


def _catalogued(row: Row) -> str:
    if row.loaded is None or row.loaded.as_catalogued is None:
        return _NOT_TRIED
    return "yes" if row.loaded.as_catalogued else "**no**"


def _versions(row: Row) -> str:
    usual = {"python", "backbay"}
    found = {} if row.loaded is None else row.loaded.versions
    return ", ".join(f"{name} {x}" for name, x in found.items() if name not in usual) or _NOT_TRIED


def _cases(row: Row) -> Iterator[str]:
    found = {(x.model, x.use): x.status for x in row.cases}
    yield from (found.get((model, use), _NOT_TRIED) for model in MODELS for use in USES)


def _conformance(row: Row) -> str:
    counts = row.conformance
    return _NOT_TRIED if not counts else ", ".join(f"{n} {x}" for x, n in counts.items() if n)


def _speeds(row: Row) -> Iterator[str]:
    found = {x.workload: x for x in row.speeds}
    for workload in WORKLOADS:
        speed = found.get(workload)
        said = [_NOT_TRIED] if speed is None else [speed.status]
        if speed is not None and speed.status == "ok":
            ratios = (
                wording.ratio(speed.to_eager, speed.to_eager_ci),
                wording.ratio(speed.to_inductor, speed.to_inductor_ci),
            )
            said = [str(x) for x in ratios]
        if speed is not None and speed.operators is not None:
            said.append(f"{speed.owned} of {speed.operators}")
        yield ", ".join(said)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        yield "None.\n"
        return
    for cells in (titles, ["---"] * len(titles), *rows):
        yield f"| {' | '.join(_escaped(x) for x in cells)} |\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH) + "\n"


def _item(text: str) -> str:
    lines = textwrap.wrap(
        _escaped(text), _WIDTH - 2, break_long_words=False, break_on_hyphens=False
    )
    return "- " + "\n  ".join(lines) + "\n"


def _escaped(text: str) -> str:
    return plain(text).replace("|", "\\|")
