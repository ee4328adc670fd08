"""A statement as text: what a README can hold, and what a terminal shows."""

from collections.abc import Iterator

from backbay.reporting import wording
from backbay_conformance.record import FAILURES, Result, Statement, Status

_MOST = 40
_VERSIONS = ("python", "torch", "triton", "backbay")


def text(statement: Statement) -> str:
    """Return the statement, its failures with their reasons, and its verdict, as plain text."""
    levels = [
        f"level {x.level:2}  {x.name:10}  {counted(x.counts)}"
        + (f" ({x.expected} of them known)" if x.expected else "")
        for x in statement.levels
    ]
    return "\n".join([*_head(statement), "", *levels, "", *_findings(statement)]) + "\n"


def verdict(statement: Statement) -> str:
    """Return in one sentence what came of it."""
    failed = [x for x in statement.results if x.failed]
    upstream = sum(x.status == "upstream" for x in statement.results)
    passed = sum(x.passed for x in statement.levels)  # a kept statement leaves out what passed
    cases = sum(sum(x.counts.values()) for x in statement.levels)
    said = f"{passed} of {cases} cases pass"
    if upstream:
        said += f", {upstream} fail in torch itself"
    expected = sum(bool(x.expected) for x in statement.results if x.status in FAILURES)
    if expected:
        said += f", {wording.counted(expected, 'known failure')}"
    failures = wording.counted(len(failed), "failure")
    if statement.partial:
        return f"{statement.backend}: interrupted: {failures} so far; {said}"
    if failed or statement.stale:
        lines = len(statement.stale)
        stale = f", {wording.counted(lines, 'stale expectation')}" if lines else ""
        return f"{statement.backend}: NOT conforming: {failures}{stale}; {said}"
    if not passed:
        return f"{statement.backend}: nothing was shown: no case passed; {said}"
    badge = f"levels 0-{statement.badge} without a failure; " if statement.badge is not None else ""
    return f"{statement.backend}: {badge or 'no failure; '}{said}"


def counted(counts: dict[Status, int]) -> str:
    """Word counts, passes first and failures last."""
    order = sorted(counts, key=lambda x: (x != "pass", x in FAILURES, x))
    return ", ".join(f"{counts[x]} {x}" for x in order) or "nothing was run"


def _head(statement: Statement) -> Iterator[str]:
    yield (
        f"{statement.backend} ({statement.origin}): conformance suite {statement.suite_version}, "
        f"{statement.profile}, seed {statement.seed}, {statement.samples} samples"
    )
    machine = statement.machine
    yield f"{statement.created[:10]}, {machine.device}, {machine.processor}, {machine.cores} cores"
    known = [f"{x} {statement.versions[x]}" for x in _VERSIONS if x in statement.versions]
    yield f"{', '.join(known)}; {statement.seconds:.0f} s"


def _findings(statement: Statement) -> Iterator[str]:
    failed = [x for x in statement.results if x.failed]
    for result in failed[:_MOST]:
        yield finding(result)
    if len(failed) > _MOST:
        yield f"... and {len(failed) - _MOST} more; --json has all"
    yield from (f"expectation: {x}" for x in statement.stale)
    yield from (f"note: {x}" for x in statement.notes)
    yield verdict(statement)


def finding(result: Result) -> str:
    """Return one result as a line, with what the reference backends gave."""
    references = ", ".join(f"{x} {status}" for x, status in result.reference_backends.items())
    return f"{result.status}  {result.id}: {result.reason}" + (
        f"  [{references}]" if references else ""
    )
