"""Which of torch's own backends stand below another: a fault that one of them shares is torch's."""

from collections.abc import Sequence

REFERENCE_BACKENDS: tuple[str, ...] = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Torch's own backends that stand below every other; ``eager`` is Dynamo alone."""
TORCH_BACKENDS: tuple[str, ...] = (*REFERENCE_BACKENDS, "inductor")


def references_below(name: str, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the reference backends that a failure of a backend is run on, the lowest first.

    Args:
        name: the backend's name.
        further: backends that it hands its graphs on to.
    """
    ladder = (*REFERENCE_BACKENDS, *(x for x in further if x not in REFERENCE_BACKENDS))
    return ladder[: ladder.index(name)] if name in ladder else ladder
