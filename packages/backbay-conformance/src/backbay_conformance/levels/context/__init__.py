"""Level context: what may surround a compiled program, or stand in it beside plain operators."""

from backbay_conformance.case import Cases
from backbay_conformance.levels.context import (
    autograd,
    directives,
    extensions,
    functions,
    higher_order,
    modes,
    modules,
    streams,
    subclasses,
    transforms,
)


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (there are no samples)
    """Return the cases of this level; streams are CUDA's."""
    for theme in (modes, transforms, subclasses, higher_order, extensions, functions):
        yield from theme.theme
    for theme in (modules, autograd, directives):
        yield from theme.theme
    if device == "cuda":
        yield from streams.theme
