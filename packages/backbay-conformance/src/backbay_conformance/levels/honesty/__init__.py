"""Level honesty: did the backend do the work that it is praised for?"""

from backbay_conformance.case import Cases
from backbay_conformance.levels.honesty import compiling, ownership, speed


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (there are no samples)
    """Return the cases of this level; what measures times needs CUDA's events."""
    yield from ownership.theme
    yield from compiling.theme
    if device == "cuda":
        yield from speed.theme
