"""Whose fault a failed case is: the backend's, or torch's own. No torch here."""

from collections.abc import Callable, Sequence

import msgspec

from backbay.reference_backends import REFERENCE_BACKENDS
from backbay_conformance.record import Result, Status


def attributed(
    result: Result, references: Sequence[str], run_on: Callable[[str], Result]
) -> Result:
    """Return a failed result with what became of the case on the reference backends.

    Args:
        result: of the backend under test.
        references: the backends below it, the lowest first.
        run_on: runs the case on one of them.

    Returns:
        ``upstream`` where a reference backend fails alike, the last one that was tried;
        ``not_runnable`` where Dynamo captures nothing for anybody.
    """
    status, reason = result.status, result.reason
    below: dict[str, Status] = {}
    for reference in references:
        one = run_on(reference)
        below[reference] = one.status
        if one.status == result.status:
            status, reason = "upstream", f"{reference} fails alike ({one.status}): {one.reason}"
            break
    # Without a reference backend, the backend is Dynamo alone.
    if result.status == below.get(REFERENCE_BACKENDS[0], "vacuous") == "vacuous":
        status, reason = "not_runnable", "Dynamo captures no graph of it for any backend"
    return msgspec.structs.replace(result, status=status, reason=reason, reference_backends=below)
