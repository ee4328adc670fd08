"""A diagnosis as one HTML file: what to fix first, where the time goes, the code and the graphs.

A page stays small enough to open and to send, however large the model: what is left out of it is
said where it would stand, and JSON has it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backbay.decisions import options_text, parse_arm
from backbay.diagnose import drawings, icicle, words
from backbay.diagnose.calls import Calls, kinds, together, without_number
from backbay.diagnose.record import CompiledGraph, Diagnosis, TrialRecord
from backbay.errors import InputError
from backbay.explain import words as explained
from backbay.explain.boxes import outline
from backbay.explain.codes import CODES
from backbay.explain.record import GraphRecord
from backbay.reporting import wording
from backbay.reporting.page import command, compiled_as, rendered
from backbay.reporting.reasons import plainly
from backbay.workloads.reference import parse

MOST_CODE = 1_000_000
"""Characters of generated code."""
MOST_EMBEDDED = 6 << 20
"""Characters of the diagnosis as JSON."""
MOST_FINDINGS = 40
MOST_KERNELS = 150
MOST_GRAPHS = 6
"""Graphs of each sort that are drawn."""
MOST_EVENTS = 40
"""Breaks, and recompiles of one call."""
_MOST_NEIGHBOURS = 6


def write_page(diagnosis: Diagnosis, path: str | Path) -> None:
    """Write a diagnosis's page to a file."""
    Path(path).write_text(page(diagnosis), encoding="utf-8")


def page(diagnosis: Diagnosis) -> str:
    """Return a diagnosis's page; the same diagnosis always gives the same text."""
    inside = diagnosis.inside
    graphs = inside.graphs if inside is not None else ()
    calls = together(graphs)
    entries = _entries(calls)
    handed = _different(diagnosis.explanation.graphs)
    drawn = [x for x in graphs if x.kernels]
    more_graphs = max(0, len(drawn) - MOST_GRAPHS) + max(0, len(handed) - MOST_GRAPHS)
    urgent = sum(x.urgent for x in diagnosis.findings[:1])
    listed = diagnosis.findings[:MOST_FINDINGS]
    return rendered(
        "backbay.diagnose",
        diagnosis,
        noun="diagnosis",
        most_embedded=MOST_EMBEDDED,
        first=listed[:urgent],
        rest=listed[urgent:],
        more_findings=len(diagnosis.findings) - len(listed),
        codes=[x for x in CODES.values() if x.code in {y.code for y in listed}],
        changes=changes,
        rows=icicle.cells(icicle.step(inside, calls)) if inside is not None else [],
        label=icicle.LABEL,
        kinds=kinds(calls),
        entries=entries,
        more_kernels=calls[len(entries) :],
        pairs=_pairs(graphs),
        modules=_modules(graphs, entries),
        compiled=[drawings.kernels(x, calls) for x in drawn[:MOST_GRAPHS]],
        handed=[drawings.nodes(x, calls) for x in handed[:MOST_GRAPHS]],
        more_graphs=more_graphs,
        most_events=MOST_EVENTS,
        words=words,
        explained=explained,
        wording=wording,
        plainly=plainly,
        command=_command(diagnosis),
    )


def _command(diagnosis: Diagnosis) -> str:
    """Return the command that asks again; empty where it was asked in Python, or of a script."""
    settings = diagnosis.settings
    try:
        parse(settings.workload)
        arm = parse_arm(settings.arm)
    except InputError:
        return ""
    chosen = ["--backend", arm.backend]
    chosen += ["--mode", arm.mode] if arm.mode is not None else []
    chosen += ["--options", options_text(arm.options)] if arm.options else []
    chosen += compiled_as(settings.dynamic, fullgraph=settings.fullgraph)
    return command(
        "diagnose",
        [settings.workload],
        chosen,
        mode=settings.mode,
        dtype=settings.dtype,
        device=settings.device,
        seed=settings.seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number before a remedy, and after it."""

    name: str
    before: str
    after: str
    better: bool | None
    """``None``: neither better nor worse."""


def changes(trial: TrialRecord) -> list[Change]:
    """Return what a remedy changed, in numbers; the time of a step also where it changed little."""
    before, after = trial.before, trial.after
    if before is None or after is None:
        return []
    found: list[Change] = []
    if before.step_ms is not None and after.step_ms is not None:
        interval, better = trial.speedup_ci, None
        if interval is not None and (interval[0] > 1 or interval[1] < 1):
            better = interval[0] > 1
        then = wording.milliseconds(before.step_ms, before.step_ci_ms).value
        now = wording.milliseconds(after.step_ms, after.step_ci_ms).value
        found.append(Change(name="ms a step", before=then, after=now, better=better))
    counts = (
        ("graph breaks", before.breaks, after.breaks),
        ("recompiles", before.recompiles, after.recompiles),
    )
    found += (
        Change(name=name, before=f"{old:,}", after=f"{new:,}", better=new < old)
        for name, old, new in counts
        if old is not None and new is not None and old != new
    )
    if before.graphs != after.graphs:
        graphs = f"{before.graphs:,}", f"{after.graphs:,}"
        found.append(Change(name="graphs", before=graphs[0], after=graphs[1], better=None))
    compiling = (wording.seconds(before.compile_s), wording.seconds(after.compile_s))
    found.append(Change(name="to compile", before=compiling[0], after=compiling[1], better=None))
    if before.peak_bytes and after.peak_bytes:
        sizes = wording.size(before.peak_bytes), wording.size(after.peak_bytes)
        found.append(Change(name="peak memory", before=sizes[0], after=sizes[1], better=None))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The calls of one kernel as the page lists them."""

    calls: Calls
    lines: tuple[tuple[str, str, str], ...]
    """File, number and code of each of the user's lines, in their order."""
    neighbours: tuple[tuple[str, str], ...]
    """Kernels that it was not fused with, each with the reason."""
    more_neighbours: int
    launch: str
    """How the wrapper calls it; empty where that is not found."""
    code: str
    same_as: str
    """The anchor of the entry that has its code."""
    is_left_out: bool
    """Whether its code is left out, so that the page stays small."""


def _entries(calls: Sequence[Calls]) -> list[Entry]:
    room, shown = MOST_CODE, dict[tuple[int, str], str]()
    entries: list[Entry] = []
    for one in calls[:MOST_KERNELS]:
        code, key = one.first.code, (one.graph.number, one.function)
        known = shown.get(key, "") if code else ""
        fits = len(code) <= room
        if code and fits and not known:
            shown[key] = one.anchor
            room -= len(code)
        neighbours = list(dict.fromkeys(_neighbours(one)))
        entries.append(
            Entry(
                calls=one,
                lines=tuple(sorted(map(_parted, one.first.lines), key=lambda x: (x[0], int(x[1])))),
                neighbours=tuple(neighbours[:_MOST_NEIGHBOURS]),
                more_neighbours=max(0, len(neighbours) - _MOST_NEIGHBOURS),
                launch=_launch(one.graph.code, one.first.name),
                code=code if fits and not known else "",
                same_as=known,
                is_left_out=bool(code) and not fits and not known,
            )
        )
    return entries


def _neighbours(calls: Calls) -> Iterator[tuple[str, str]]:
    for kernel in calls.kernels:
        yield from ((without_number(x.kernel), x.reason) for x in kernel.not_fused)


def _pairs(graphs: Sequence[CompiledGraph]) -> dict[tuple[int, str, str, str], int]:
    """Return kernels of Inductor's own that were not fused, with the reason, and how often."""
    return Counter(
        (graph.number, without_number(one), without_number(other), reason)
        for graph, one, other, reason in words.unfused(graphs)
    )


def _parted(line: str) -> tuple[str, str, str]:
    """Part ``file:line: code``."""
    place, _, code = line.partition(": ")
    file, _, number = place.rpartition(":")
    return (file, number, code) if number.isdigit() else (line, "0", "")


def _launch(module: str, name: str) -> str:
    """Return the line that calls a kernel, which Inductor marks with the kernel's name."""
    found = re.search(rf"\[Provenance debug handles\] {re.escape(name)}\n\s*(.+)", module)
    return found[1] if found else ""


def _modules(
    graphs: Sequence[CompiledGraph], entries: Sequence[Entry]
) -> list[tuple[CompiledGraph, str]]:
    """Return the generated module of each graph; empty where the page has no room for it."""
    room = MOST_CODE - sum(len(x.code) for x in entries)
    found: list[tuple[CompiledGraph, str]] = []
    for graph in graphs:
        fits = len(graph.code) <= room
        room -= len(graph.code) if fits else 0
        if graph.code:
            found.append((graph, graph.code if fits else ""))
    return found


def _different(graphs: Sequence[GraphRecord]) -> list[GraphRecord]:
    """Return the graphs that Dynamo handed over, without those that differ in sizes only."""
    found: dict[object, GraphRecord] = {}
    for graph in graphs:
        found.setdefault(outline(graph.nodes), graph)
    return list(found.values())
