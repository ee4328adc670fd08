"""Which of torch's own backends stand below another: a fault that one of them shares is torch's."""

from collections.abc import Sequence

RUNGS: tuple[str, ...] = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Torch's own backends that stand below every other; ``eager`` is Dynamo alone."""
TORCHS: tuple[str, ...] = (*RUNGS, "inductor")


def rungs_below(name: str, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the rungs that a failure of a backend is put to, the lowest first.

    Args:
        name: the backend's name.
        further: backends that it hands its graphs on to.
    """
    ladder = (*RUNGS, *(x for x in further if x not in RUNGS))
    return ladder[: ladder.index(name)] if name in ladder else ladder
