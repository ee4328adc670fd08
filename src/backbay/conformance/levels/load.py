"""Level load."""

from backbay.conformance.case import Cases, Collection

_level = Collection("load")


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Give the cases of this level."""
    yield from _level
