"""Statements that were made before: of some levels each as one, explained anew, without passes."""

from collections.abc import Sequence

import msgspec

from backbay.errors import InputError
from backbay_conformance.expecting import Expected
from backbay_conformance.record import FAILURES, LevelSummary, Statement

_SAME_SUBJECT = ("suite_version", "backend", "origin", "device", "seed", "samples")
_ALIKE = (*_SAME_SUBJECT, "machine", "versions")


def merged(statements: Sequence[Statement], *, profile: str) -> Statement:
    """Return one statement for runs of different levels, in the levels' order.

    Args:
        statements: at least one; no level in two of them.
        profile: what the levels were run by.

    Raises:
        InputError: they are not of one backend, machine, suite and seed, or repeat a level.
    """
    first = statements[0]
    for other in statements[1:]:
        unlike = [x for x in _ALIKE if getattr(other, x) != getattr(first, x)]
        if unlike:
            raise InputError(
                f"statements of {first.backend} differ in {', '.join(unlike)}: they are not one"
            )
    levels = sorted((x for one in statements for x in one.levels), key=lambda x: x.level)
    numbers = [x.level for x in levels]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"statements of {first.backend} repeat a level: {numbers}")
    return msgspec.structs.replace(
        first,
        created=min(x.created for x in statements),
        profile=profile,
        seconds=sum(x.seconds for x in statements),
        levels=tuple(levels),
        results=tuple(sorted((x for y in statements for x in y.results), key=lambda x: x.level)),
        stale=tuple(x for one in statements for x in one.stale),
        notes=tuple(dict.fromkeys(x for one in statements for x in one.notes)),
    )


def renewed(statement: Statement, later: Statement) -> Statement:
    """Return a statement with the cases that were run again later, and a note that says so.

    Args:
        statement: of some levels.
        later: of some of its cases, maybe on another machine.

    Raises:
        InputError: they are not of one backend, suite, seed and version of torch, or the first does
            not have a case of the second.
    """
    unlike = [x for x in _SAME_SUBJECT if getattr(statement, x) != getattr(later, x)]
    if statement.versions["torch"] != later.versions["torch"]:
        unlike.append("torch")
    if unlike:
        raise InputError(f"what was run again of {later.backend} differs in {', '.join(unlike)}")
    anew = {x.id: x for x in later.results}
    unknown = sorted(set(anew) - {x.id for x in statement.results})
    if unknown:
        raise InputError(f"the statement of {statement.backend} has no {', '.join(unknown)}")
    results = tuple(anew.get(x.id, x) for x in statement.results)
    where = f"{later.machine.processor}, {later.machine.cores} cores"
    note = f"run again on {later.created[:10]} ({where}): {', '.join(sorted(anew))}"
    return msgspec.structs.replace(
        statement,
        results=results,
        levels=tuple(LevelSummary.of(x.level, results) for x in statement.levels),
        notes=(*statement.notes, note),
    )


def explained_anew(statement: Statement) -> Statement:
    """Return a statement as if it had been made with what the suite knows of today.

    Only for a backend without an expectations file of its own: its lines are not in a statement.
    """
    expected = Expected(
        backend=statement.backend,
        device=statement.device.partition(":")[0],
        torch=statement.versions["torch"],
    )
    results = expected.explained(msgspec.structs.replace(x, expected="") for x in statement.results)
    known = [x.level for x in results if x.expected and x.status in FAILURES]
    levels = (msgspec.structs.replace(x, expected=known.count(x.level)) for x in statement.levels)
    return msgspec.structs.replace(statement, results=tuple(results), levels=tuple(levels))


def brief(statement: Statement) -> Statement:
    """Leave the passes out of the results; the levels' counts still have them."""
    found = tuple(x for x in statement.results if x.status != "pass")
    return msgspec.structs.replace(statement, results=found)
