"""A verification in the terminal: the verdict, every check, the first faulty module."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backbay.reporting.terminal import add_row, indented, line, table
from backbay.reporting.wording import NOTHING, counted, rough, short
from backbay.verify.record import (
    FAILURES,
    BackendRecord,
    BlameRecord,
    CurveRecord,
    Report,
)
from backbay.verify.wording import STATUSES


def text(report: Report) -> RenderableType:
    """Lay a verification out for the terminal."""
    parts: list[RenderableType] = [line(report.sentence, "bold" if report.passed else "bold red")]
    several = len(report.results) > 1
    for result in report.results:
        if several:
            parts += [Text(), line(result.sentence, "" if result.passed else "red")]
        parts += [Text(), _table(result), *_failures(result)]
        if result.curve is not None:
            parts += [Text(), *_curve(result.curve, result.backend)]
        if result.blame is not None:
            parts += [Text(), *_blame(result.blame)]
        parts += [line(f"note: {note}", "dim") for note in result.notes]
    parts += [line(f"note: {note}", "dim") for note in report.notes]
    return Group(*parts)


def _table(result: BackendRecord) -> RenderableType:
    titles = ("mode", "check", "verdict", "of allowed", "of eager's", "graphs", "worst at")
    made = table(*titles, folded="worst at")
    for check in result.checks:
        proof = check.proof
        severity, ratio = (proof.severity, proof.ratio) if proof is not None else (None, None)
        cells = (
            check.mode,
            check.check,
            STATUSES[check.status],
            NOTHING if severity is None else rough(severity),
            NOTHING if ratio is None else rough(ratio),
            "" if check.graphs is None else check.graphs,
            "" if proof is None else proof.where or "",
        )
        add_row(made, cells, "red" if check.status in FAILURES else "")
    return made


def _failures(result: BackendRecord) -> Iterator[RenderableType]:
    """Return why, once for each mode and reason: the table has the numbers of the others."""
    told = set[tuple[str, str]]()
    for check in result.checks:
        how = check.reason if check.status != "wrong" else "wrong"
        if check.status == "right" or (check.mode, how) in told:
            continue
        told.add((check.mode, how))
        style = "red" if check.status in FAILURES else "yellow"
        yield line(f"{check.mode}, {check.check}: {check.reason}", style)
        if check.reference_backends:
            below = ", ".join(
                f"{name} {STATUSES[x]}" for name, x in check.reference_backends.items()
            )
            yield indented(f"reference backends: {below}")


def _curve(curve: CurveRecord, backend: str) -> Iterator[RenderableType]:
    yield line("Unconstrained training (informational)", "bold")
    made = table("step", "float64", "eager", backend, justify="right")
    rows = zip(curve.truth, curve.eager, curve.backend, strict=True)
    for number, losses in enumerate(rows, 1):
        add_row(made, [number, *(NOTHING if x is None else f"{x:.8g}" for x in losses)])
    yield Padding(made, (0, 0, 0, 2))
    if curve.drift is not None:
        yield indented(f"parameters: {rough(curve.drift)}x as far from float64's as eager's")


def _blame(blame: BlameRecord) -> Iterator[RenderableType]:
    yield line("First faulty module", "bold")
    yield indented(blame.sentence, "" if blame.found == "not_found" else "red")
    if blame.called_at:
        yield indented(f"called at {short(blame.called_at)}")
    tried = f"{counted(blame.tried, 'module')} compiled in isolation"
    yield indented(f"{tried}, for: {blame.mode}, {blame.check}", "dim")
    for note in blame.notes:
        yield indented(f"note: {note}", "dim")
