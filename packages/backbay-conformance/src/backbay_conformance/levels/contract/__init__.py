"""Level contract: what torch.compile promises of any program, by hand-written cases."""

from backbay_conformance.case import Cases
from backbay_conformance.levels.contract import (
    aliasing,
    calls,
    capture,
    containers,
    control,
    dtypes,
    gradients,
    layout,
    mutation,
    randomness,
    reductions,
    state,
    training,
    values,
)

_THEMES = (
    values, dtypes, reductions, layout, aliasing, mutation, calls, state, randomness, gradients,
    training, containers, capture, control,
)  # fmt: skip


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Return the cases of this level."""
    for theme in _THEMES:
        yield from theme.theme
