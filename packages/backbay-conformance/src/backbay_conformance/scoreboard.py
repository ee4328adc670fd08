"""Several statements side by side, as one HTML file that needs nothing else.

Everything that comes from a statement is escaped; the statements themselves are embedded as JSON,
so that the page is also the record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
import msgspec

from backbay.errors import InputError, plain
from backbay.registry.distributions import read_text
from backbay.reporting.embedding import embedded
from backbay.reporting.page import visible
from backbay_conformance import statement as words
from backbay_conformance.record import FAILURES, LEVELS, LevelSummary, Result, Statement

_LARGEST = 256 << 20  # bytes of a statement
_TEMPLATE = "scoreboard.html.jinja"


def read(path: Path) -> Statement:
    """Read what ``backbay conform --json`` wrote.

    Raises:
        InputError: it is no statement, or one of another version.
    """
    try:
        return msgspec.json.decode(read_text(str(path), _LARGEST), type=Statement)
    except OSError as error:
        raise InputError(f"statement {path} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(f"{path} holds no statement of this version: {error}") from error


def write_page(statements: Sequence[Statement], path: Path) -> None:
    """Write the page of some statements to a file."""
    path.write_text(page(statements), encoding="utf-8")


def page(statements: Sequence[Statement]) -> str:
    """Return the page; the same statements always give the same text."""
    environment = jinja2.Environment(
        autoescape=True,
        finalize=visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    template = resources.files("backbay_conformance").joinpath(_TEMPLATE)
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        rows=[_row(x) for x in statements],
        levels=LEVELS,
        version=statements[0].versions.get("backbay", "") if statements else "",
        json=embedded(list(statements)),
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One level of one backend."""

    text: str
    """Passes over what was tried."""
    kind: str
    """``right``, ``known`` (every failure is explained), ``wrong`` or ``untried``."""
    title: str
    """All counts."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One backend."""

    statement: Statement
    verdict: str
    cells: tuple[Cell, ...]
    failed: tuple[Result, ...]
    explained: tuple[Result, ...]
    """Torch's own failures, and those that the expectations file names."""
    surroundings: str


def _row(statement: Statement) -> Row:
    by_level = {x.level: x for x in statement.levels}
    machine = statement.machine
    known = {**statement.versions, "cores": str(machine.cores)}
    return Row(
        statement=statement,
        verdict=words.verdict(statement),
        cells=tuple(_cell(by_level.get(number)) for number in range(len(LEVELS))),
        failed=tuple(x for x in statement.results if x.failed),
        explained=tuple(
            x
            for x in statement.results
            if x.status == "upstream" or (x.status in FAILURES and x.expected)
        ),
        surroundings=f"{machine.device}, {machine.processor}; "
        + ", ".join(f"{name} {x}" for name, x in known.items()),
    )


def _cell(summary: LevelSummary | None) -> Cell:
    if summary is None or not summary.tried:
        return Cell(text="", kind="untried", title="nothing was tried")
    kind = "wrong" if summary.failed else "known" if summary.passed < summary.tried else "right"
    text = f"{summary.passed}/{summary.tried}"
    return Cell(text=text, kind=kind, title=words.counted(summary.counts))
