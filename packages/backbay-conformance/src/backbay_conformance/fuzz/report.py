"""What a run of the fuzzer found, as data and as text. No torch here."""

from typing import Literal

import msgspec

from backbay.reporting.wording import counted
from backbay_conformance.fuzz.program import GRAMMAR, Program
from backbay_conformance.record import Result, Status

Standing = Literal["new", "known", "upstream"]
"""Whose a find is: the backend's; known, with a link; or of a reference backend, so torch's."""


class Find(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, however many programs show it."""

    standing: Standing
    result: Result
    """Of the minimised program, where that could be run; else of the first."""
    seeds: tuple[int, ...]
    """Every program that showed it."""
    program: Program | None = None
    """Minimised; ``null`` where that was not done: there were too many, or it was interrupted."""
    repro: str = ""
    """One file of plain PyTorch; empty where there is no program."""
    link: str = ""
    """Of a known find: the issue."""


class FuzzReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    backend: str
    device: str
    torch: str
    grammar: int = GRAMMAR
    first_seed: int
    programs: int
    """How many were run; of seeds one after the other."""
    seconds: float
    """By the clock, without what minimising took."""
    minimising_s: float
    counts: dict[Status, int]
    finds: tuple[Find, ...]
    partial: bool = False
    """Whether it was interrupted."""

    @property
    def programs_an_hour(self) -> float:
        """How fast it was, on this machine, with all its workers."""
        return self.programs / self.seconds * 3600 if self.seconds else 0.0

    def of(self, standing: Standing) -> tuple[Find, ...]:
        """Return the finds of one kind."""
        return tuple(x for x in self.finds if x.standing == standing)

    @property
    def passed(self) -> bool:
        """Whether nothing new is held against the backend."""
        return not self.of("new")


def as_text(report: FuzzReport) -> str:
    """Render a report."""
    counts = ", ".join(f"{v} {k}" for k, v in report.counts.items())
    head = (
        f"{report.backend} on {report.device}, torch {report.torch}: {report.programs} programs "
        f"from seed {report.first_seed} (grammar {report.grammar}) in {report.seconds:.0f} s, "
        f"{report.programs_an_hour:.0f} an hour; {report.minimising_s:.0f} s more to minimise"
    )
    if report.partial:
        head += "; interrupted"
    lines = [head, counts or "nothing was run"]
    for standing, title in (
        ("new", "new"),
        ("upstream", "of torch's, seen on a reference backend"),
        ("known", "known"),
    ):
        found = [x for x in report.finds if x.standing == standing]
        lines.append(f"{counted(len(found), 'find')} {'is' if len(found) == 1 else 'are'} {title}")
        for find in found:
            lines += ["", *_find(find), ""] if standing != "known" else _find(find)
    return "\n".join(lines) + "\n"


def _find(find: Find) -> list[str]:
    seeds = ", ".join(map(str, find.seeds[:8])) + (", ..." if len(find.seeds) > 8 else "")  # noqa: PLR2004
    lines = [f"- {find.result.status}: {find.result.reason}", f"  programs {seeds}"]
    if find.standing == "known":
        return [*lines, f"  {find.link}"]
    if not find.repro:
        return [*lines, "  not made small"]
    return [*lines, "", *(f"    {x}".rstrip() for x in find.repro.splitlines())]
