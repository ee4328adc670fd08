"""Level dtypes."""

from backbay.conformance.case import Cases, Collection

_level = Collection("dtypes")


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Give the cases of this level."""
    yield from _level
