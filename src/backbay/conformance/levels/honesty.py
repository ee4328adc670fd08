"""Level honesty."""

from backbay.conformance.case import Cases, Collection

_level = Collection("honesty")


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Give the cases of this level."""
    yield from _level
