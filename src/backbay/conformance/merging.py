"""Statements that were made before: of some levels each as one, explained anew, without passes."""

from collections.abc import Sequence

import msgspec

from backbay.conformance import expecting
from backbay.conformance.record import FAILURES, Statement
from backbay.errors import InputError
from backbay.rungs import TORCHS

_ALIKE = ("suite_version", "backend", "origin", "device", "seed", "samples", "machine", "versions")


def merged(statements: Sequence[Statement], *, profile: str) -> Statement:
    """Give one statement for runs of different levels, in the levels' order.

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


def explained_anew(statement: Statement) -> Statement:
    """Give a statement as if it had been made with what the suite knows of today.

    Only for a backend without an expectations file of its own: its lines are not in a statement.
    """
    name = statement.backend
    results = expecting.explained(
        [msgspec.structs.replace(x, expected="") for x in statement.results],
        expecting.shipped(name),
        device=statement.device.partition(":")[0],
        torch=statement.versions["torch"],
        is_torchs=name in TORCHS,
    )
    known = [x.level for x in results if x.expected and x.status in FAILURES]
    levels = (msgspec.structs.replace(x, expected=known.count(x.level)) for x in statement.levels)
    return msgspec.structs.replace(statement, results=tuple(results), levels=tuple(levels))


def brief(statement: Statement) -> Statement:
    """Leave the passes out of the results; the levels' counts still have them."""
    found = tuple(x for x in statement.results if x.status != "pass")
    return msgspec.structs.replace(statement, results=found)
