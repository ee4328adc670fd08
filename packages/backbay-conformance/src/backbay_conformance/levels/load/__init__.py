"""Level load: what is known of a backend before it runs, and that it keeps what it declares."""

from backbay_conformance.case import Cases
from backbay_conformance.levels.load import declared, loaded, metadata


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Return the cases of this level."""
    yield from metadata.theme
    yield from loaded.theme
    yield from declared.theme
