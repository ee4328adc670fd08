"""How an explanation reads: the same words in the terminal and on the page."""

from collections.abc import Sequence

from backbay.explain.record import (
    CallRecord,
    FindingRecord,
    GraphRecord,
    GuardRecord,
    PassRecord,
    StageRecord,
)
from backbay.reporting.wording import counted, seconds

_MOST_OPERATORS = 12
_CALLS = {"first": "", "again": "same inputs"}
"""What is said of a call beside its number; of others, their name."""


def size_of(graph: GraphRecord) -> str:
    """Word how large a graph is."""
    calls = sum(graph.operators.values())
    return f"{counted(calls, 'op')}, {counted(len(graph.groups), 'fusable group')}"


def operators(graph: GraphRecord, most: int = _MOST_OPERATORS) -> str:
    """Word what a graph calls, the most frequent first."""
    named = [f"{count}x {name}" for name, count in graph.operators.items()]
    more = len(named) - most
    return ", ".join(named[:most]) + (f", and {counted(more, 'other')}" if more > 0 else "")


def call(index: int, one: CallRecord) -> str:
    """Word which call it is: its number, and what differs from the call before."""
    said = _CALLS.get(one.name, one.name)
    return f"Call {index + 1}{said and f' ({said})'}"


def did(one: PassRecord) -> str:
    """Word what a pass did."""
    if one.error:
        return "failed"
    if one.changes:
        return f"fired {one.changes}x"
    return "did not fire"


def which(stage: StageRecord) -> str:
    """Word which graph passes ran on."""
    return "Dynamo's graph" if stage.graph == "dynamo" else f"The {stage.graph} graph"


def by_group(guards: Sequence[GuardRecord]) -> dict[str, list[GuardRecord]]:
    """Part guards by their group, in order."""
    parted: dict[str, list[GuardRecord]] = {}
    for one in guards:
        parted.setdefault(one.group, []).append(one)
    return parted


def how_often(finding: FindingRecord) -> str:
    """Word how often something was met, and what it took to compile; empty for once, in no time."""
    parts = [f"{finding.count} times"] if finding.count > 1 else []
    if finding.cost_s is not None:
        parts.append(f"{seconds(finding.cost_s)} to compile")
    return f" ({', '.join(parts)})" if parts else ""
