"""Adds to a row that failed what is known of its backend's faults, and what to do about them."""

import msgspec

from backbay.race.record import Result
from backbay.registry import BackendSpec, Environment
from backbay.registry.availability import matching, shown


def with_remedy(result: Result, spec: BackendSpec | None, environment: Environment) -> Result:
    """Return a row with the remedy of the fault that its error shows, where one is known.

    Where the error shows none, the faults that have a remedy are notes: what a row that is wrong
    suffers from can't be read from its reason.

    Args:
        result: the row.
        spec: the row's backend; none for a function named by where it is.
        environment: whose versions decide which faults are looked at.
    """
    if spec is None or result.status in {"ok", "unavailable"}:
        return result
    fault = shown(result.reason, spec, environment)
    if fault is not None:
        return msgspec.structs.replace(result, reason=f"{result.reason}; {fault.remedy}")
    known = matching((*spec.broken, *spec.limits), spec, environment)
    others = (x for x in known if x.remedy and not x.errors)
    notes = (f"known of {spec.name}: {x.reason}; {x.remedy}" for x in others)
    return msgspec.structs.replace(result, notes=(*result.notes, *notes))
