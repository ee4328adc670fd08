"""Which of the rungs below a backend a failed case is charged to."""

from backbay.reference_backends import REFERENCE_BACKENDS
from backbay_conformance.record import Result, Status


def with_attribution(
    result: Result, rung: str | None, reason: str, below: dict[str, Status]
) -> Result:
    """Return a failed result with its rungs, the first of which that failed alike is ``rung``."""
    status: Status = result.status
    if rung == REFERENCE_BACKENDS[0] and status == "vacuous":
        status, reason = "not_runnable", "Dynamo captures no graph of it for any backend"
    elif rung is not None:
        status, reason = "upstream", f"{rung} fails alike ({result.status}): {reason}"
    return Result(
        id=result.id,
        level=result.level,
        status=status,
        reason=reason or result.reason,
        rungs=below,
        seconds=result.seconds,
    )
