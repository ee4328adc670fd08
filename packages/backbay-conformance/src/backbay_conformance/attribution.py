"""Whose fault a failed case is: the backend's, or torch's own. No torch here."""

from collections.abc import Callable, Sequence

import msgspec

from backbay.reference_backends import REFERENCE_BACKENDS
from backbay_conformance.record import Result, Status


def attributed(result: Result, rungs: Sequence[str], run_on: Callable[[str], Result]) -> Result:
    """Return a failed result with what became of the case on the rungs below.

    Args:
        result: of the backend under test.
        rungs: the backends below it, the lowest first.
        run_on: runs the case on one of them.

    Returns:
        ``upstream`` where a rung fails alike, the last one that was tried; ``not_runnable`` where
        Dynamo captures nothing for anybody.
    """
    status, reason = result.status, result.reason
    below: dict[str, Status] = {}
    for rung in rungs:
        one = run_on(rung)
        below[rung] = one.status
        if one.status == result.status:
            status, reason = "upstream", f"{rung} fails alike ({one.status}): {one.reason}"
            break
    # Without a rung below, the backend is Dynamo alone.
    if result.status == below.get(REFERENCE_BACKENDS[0], "vacuous") == "vacuous":
        status, reason = "not_runnable", "Dynamo captures no graph of it for any backend"
    return msgspec.structs.replace(result, status=status, reason=reason, rungs=below)
