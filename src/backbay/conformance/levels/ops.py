"""Level ops."""

from backbay.conformance.case import Cases, Collection

_level = Collection("ops")


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Give the cases of this level."""
    yield from _level
