"""Many numbers to few, and products of matrices."""

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, kind
from backbay_conformance.fuzz.scope import EXACT, Facts, Proposal, Value


def _count(value: Value) -> int:
    return max([1, *(x.numel() for x in value.metas)])


def _dims(c: Chooser, value: Value, *, several: bool = True) -> str:
    if value.dim >= 2 and several and c.chance(0.3):  # noqa: PLR2004
        return f"({', '.join(map(str, sorted(c.rng.sample(range(value.dim), 2))))})"
    return str(c.one((c.rng.randrange(value.dim), -1)))


def _keep(c: Chooser) -> str:
    return c.one(("", ", keepdim=True"))


@kind(6)
def total(c: Chooser) -> Proposal | None:
    """Add up; also nothing, and integers of a narrow type."""
    value = c.value(lambda x: x.dim >= 1 and not x.meta.is_complex())
    if value is None:
        return None
    bound = value.facts.bound * _count(value)
    facts = Facts(bound=bound, exact=not value.floating, positive=value.facts.positive)
    return Proposal(expr=f"{{0}}.sum({_dims(c, value)}{_keep(c)})", args=(value,), facts=facts)


@kind(5)
def average(c: Chooser) -> Proposal | None:
    """Take the mean of at least one number."""
    value = c.value(lambda x: x.floating and x.dim >= 1 and _nowhere_empty(x))
    if value is None:
        return None
    facts = Facts(bound=value.facts.bound)
    return Proposal(expr=f"{{0}}.mean({_dims(c, value)}{_keep(c)})", args=(value,), facts=facts)


@kind(3)
def variance(c: Chooser) -> Proposal | None:
    """Take the variance of at least two numbers."""
    value = c.value(lambda x: x.full and x.dim >= 1 and x.least(-1) >= 2)  # noqa: PLR2004
    if value is None:
        return None
    forms = ["{0}.var(-1)", "{0}.var(-1, correction=0, keepdim=True)"]
    facts = Facts(bound=4 * value.facts.bound**2)
    return Proposal(expr=c.one(forms), args=(value,), facts=facts)


@kind(3)
def largest(c: Chooser) -> Proposal | None:
    """Find the largest of at least one number."""
    value = c.value(
        lambda x: (
            (x.facts.distinct or not c.train or x.integral)
            and (x.floating or x.integral)
            and x.dim >= 1
            and _nowhere_empty(x)
        )
    )
    if value is None:
        return None
    expr = f"{{0}}.{c.one(('amax', 'amin'))}({_dims(c, value)}{_keep(c)})"
    return Proposal(
        expr=expr,
        args=(value,),
        facts=Facts(
            bound=value.facts.bound, exact=value.facts.exact, positive=value.facts.positive
        ),
    )


@kind(4)
def where_largest(c: Chooser) -> Proposal | None:
    """Find where the largest is, among numbers of which no two are equal."""
    value = c.value(lambda x: x.facts.distinct and x.dim >= 1 and _nowhere_empty(x))
    if value is None:
        return None
    expr = f"{{0}}.{c.one(('argmax', 'argmin'))}({_dims(c, value, several=False)}{_keep(c)})"
    bound = max(max(x.shape) for x in value.metas)
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=bound, exact=True, positive=True))


@kind(3)
def ordered(c: Chooser) -> Proposal | None:
    """Sort numbers of which no two are equal."""
    value = c.value(lambda x: x.facts.distinct and x.dim >= 1 and _nowhere_empty(x))
    if value is None:
        return None
    expr = c.one(("{0}.sort(-1).values", "{0}.sort(-1, descending=True).indices"))
    bound = max(value.facts.bound, *(x.shape[-1] for x in value.metas))
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=bound, exact=True))


@kind(4)
def running_total(c: Chooser) -> Proposal | None:
    """Add up as it goes."""
    value = c.value(lambda x: x.dim >= 1 and not x.meta.is_complex() and x.dtype != torch.bool)
    if value is None:
        return None
    bound = value.facts.bound * _count(value)
    facts = Facts(bound=bound, exact=value.integral, positive=value.facts.positive)
    return Proposal(
        expr=f"{{0}}.cumsum({_dims(c, value, several=False)})", args=(value,), facts=facts
    )


@kind(4)
def soft(c: Chooser) -> Proposal | None:
    """Weigh by exponentials."""
    value = c.value(lambda x: x.floating and x.dim >= 1 and _nowhere_empty(x))
    if value is None:
        return None
    form = c.one(("softmax", "log_softmax", "logsumexp"))
    facts = Facts(bound=2 * value.facts.bound + 8)
    return Proposal(
        expr=f"{{0}}.{form}({_dims(c, value, several=False)})", args=(value,), facts=facts
    )


@kind(3)
def length(c: Chooser) -> Proposal | None:
    """Take a norm, away from zero."""
    value = c.value(lambda x: x.floating and x.dim >= 1 and _nowhere_empty(x))
    if value is None:
        return None
    facts = Facts(bound=(value.facts.bound**2 + 1) * _count(value))
    expr = f"torch.linalg.vector_norm({{0}} * {{0}} + 1, dim={_dims(c, value)}{_keep(c)})"
    return Proposal(expr=expr, args=(value,), facts=facts)


@kind(2)
def quantifier(c: Chooser) -> Proposal | None:
    """Ask whether any is true, or all."""
    value = c.value(lambda x: x.dtype == torch.bool and x.dim >= 1)
    if value is None:
        return None
    expr = f"{{0}}.{c.one(('any', 'all'))}({_dims(c, value, several=False)})"
    return Proposal(expr=expr, args=(value,), facts=EXACT)


@kind(5)
def matrices(c: Chooser) -> Proposal | None:
    """Multiply matrices, one of them transposed where that fits."""
    left = c.value(lambda x: x.floating and x.dim == 2)  # noqa: PLR2004
    if left is None:
        return None
    right = c.value(
        lambda x: (
            x.dtype == left.dtype
            and x.dim == 2  # noqa: PLR2004
            and any(a[1] in b for a, b in zip(left.shapes, x.shapes, strict=True))
        )
    )
    if right is None:
        return None
    inner = max(x[1] for x in left.shapes)
    facts = Facts(bound=left.facts.bound * right.facts.bound * max(inner, 1))
    sides = zip(left.shapes, right.shapes, strict=True)
    expr = "{0} @ {1}" if all(a[1] == b[0] for a, b in sides) else "{0} @ {1}.t()"
    return Proposal(expr=expr, args=(left, right), facts=facts)


@kind(2)
def layer_norm(c: Chooser) -> Proposal | None:
    """Normalise rows that have some spread by construction."""
    value = c.value(lambda x: x.full and x.dim >= 1 and x.least(-1) >= 2)  # noqa: PLR2004
    if value is None:
        return None
    expr = "torch.nn.functional.layer_norm({0}, ({0}.shape[-1],), eps=0.5)"
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=2 * value.facts.bound + 2))


def _nowhere_empty(value: Value) -> bool:
    return all(x.numel() for x in value.metas)
