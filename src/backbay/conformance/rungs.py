"""Which of torch's own backends stand below another, and which of them a failure is charged to."""

from collections.abc import Sequence

from backbay.conformance.record import Result, Status

RUNGS: tuple[str, ...] = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Torch's own backends that stand below every other; ``eager`` is Dynamo alone."""
TORCHS: tuple[str, ...] = (*RUNGS, "inductor")


def charged(result: Result, rung: str | None, reason: str, below: dict[str, Status]) -> Result:
    """Give a failed result with its rungs, the first of which that failed alike is ``rung``."""
    status: Status = result.status
    if rung == RUNGS[0] and status == "vacuous":
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


def rungs_below(name: str, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the rungs that a failure of a backend is put to, the lowest first.

    Args:
        name: the backend's name.
        further: backends that it hands its graphs on to.
    """
    ladder = (*RUNGS, *(x for x in further if x not in RUNGS))
    return ladder[: ladder.index(name)] if name in ladder else ladder
