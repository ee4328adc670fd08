"""Gathering by index, joining, and what sizes are computed with."""

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, fits_into, kind
from backbay_conformance.fuzz.scope import EXACT, Facts, Proposal, Value, joined


def index_for(c: Chooser, value: Value, dim: int = 0) -> Value | None:
    """Draw an index whose elements are all inside a dimension, and different."""
    sizes = [x[dim] for x in value.shapes]
    return c.value(
        lambda x: (
            bool(x.facts.below)
            and x.dim == 1
            and x.facts.distinct
            and all(a <= b for a, b in zip(x.facts.below, sizes, strict=True))
        )
    )


@kind(4)
def positions(c: Chooser) -> Proposal | None:
    """Count up, as far as a size says: an index."""
    value = c.value(lambda x: x.dim >= 1 and x.least(0) >= 1)
    if value is None:
        return None
    below = tuple(x[0] for x in value.shapes)
    facts = Facts(bound=max(below), exact=True, distinct=True, below=below, positive=True)
    turned = c.one(("", ".flip(0)", ".roll(1)"))
    expr = f"torch.arange({{0}}.shape[0], device={{0}}.device){turned}"
    return Proposal(expr=expr, args=(value,), facts=facts)


@kind(10)
def gathered(c: Chooser) -> Proposal | None:
    """Take rows by index."""
    value = c.value(lambda x: x.dim >= 1)
    index = value and index_for(c, value)
    if value is None or index is None:
        return None
    expr = c.one(("{0}[{1}]", "{0}.index_select(0, {1})", "torch.take_along_dim({0}, {1}, 0)"))
    if "take" in expr and value.dim != 1:
        return None
    return Proposal(expr=expr, args=(value, index), facts=joined(value.facts))


@kind(4)
def joining(c: Chooser) -> Proposal | None:
    """Join two of the same width, or stack two of the same shape."""
    left = c.value(lambda x: x.dim >= 1)
    right = left and c.value(
        lambda x: (
            x.dim == left.dim
            and x.dtype == left.dtype
            and all(a[1:] == b[1:] for a, b in zip(x.shapes, left.shapes, strict=True))
        )
    )
    if left is None or right is None:
        return None
    expr = "torch.cat([{0}, {1}])"
    if left.shapes == right.shapes and c.chance(0.5):
        expr = c.one(("torch.stack([{0}, {1}], -1)", "torch.stack([{1}, {0}])"))
    facts = joined(left.facts, right.facts)
    return Proposal(expr=expr, args=(left, right), facts=facts)


@kind(3)
def padded(c: Chooser) -> Proposal | None:
    """Pad with a number."""
    value = c.value(lambda x: x.dim >= 1 and not x.meta.is_complex() and x.dtype != torch.bool)
    if value is None:
        return None
    expr = "torch.nn.functional.pad({0}, (1, 2), value=1)"
    return Proposal(expr=expr, args=(value,), facts=joined(value.facts, EXACT))


@kind(4)
def fresh(c: Chooser) -> Proposal | None:
    """Make new memory, as large as a size says."""
    value = c.value(lambda x: x.dim >= 1)
    if value is None:
        return None
    form = c.one(("new_zeros({0}.shape[0], 2)", "new_ones({0}.shape[0])", "new_zeros({0}.shape)"))
    return Proposal(expr=f"{{0}}.{form}", args=(value,), facts=EXACT)


@kind(4)
def by_size(c: Chooser) -> Proposal | None:
    """Compute with a size as a number."""
    value = c.value(lambda x: x.floating and x.dim >= 1 and x.least(0) >= 1)
    if value is None:
        return None
    largest = max(x[0] for x in value.shapes)
    expr = c.one(
        (
            "{0} * {0}.shape[0]",
            "{0} / {0}.shape[0]",
            "{0} + {0}.numel()",
            "{0} * {0}.shape[0] ** -0.5",
            "{0} + ({0}.shape[0] * 3 - 1) % 4",
        )
    )
    bound = (value.facts.bound + max(x.numel() for x in value.metas)) * largest
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=bound))


@kind(2)
def by_parity(c: Chooser) -> Proposal | None:
    """Go one way or the other, as a size says."""
    value = c.value(lambda x: x.floating and x.dim >= 1)
    test = c.one(("{0}.shape[0] % 2 == 0", "{0}.shape[0] > 5", "{0}.dim() == 2"))
    expr = f"{{0}} + 1 if {test} else {{0}} * 0.5"
    facts = value and Facts(bound=value.facts.bound + 1)
    return value and Proposal(expr=expr, args=(value,), facts=facts)


@kind(4)
def one_hot(c: Chooser) -> Proposal | None:
    """Spread positions over a dimension of their own by comparing."""
    index = c.value(lambda x: bool(x.facts.below) and x.dim == 1)
    return index and Proposal(expr="{0}[:, None] == {0}", args=(index,), facts=EXACT)


__all__ = ["fits_into", "index_for"]
