"""Complex numbers: lazy conjugates, real and imaginary parts as views, pairs of floats."""

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, kind
from backbay_conformance.fuzz.scope import Facts, Proposal, Value, joined


def _complex(c: Chooser) -> Value | None:
    return c.value(lambda x: x.meta.is_complex())


@kind(3)
def made_complex(c: Chooser) -> Proposal | None:
    """Make complex numbers of two floats."""
    left = c.value(lambda x: x.dtype == torch.float32)
    right = left and c.beside(left, lambda x: x.dtype == torch.float32)
    if left is None or right is None:
        return None
    facts = joined(left.facts, right.facts)
    return Proposal(expr="torch.complex({0}, {1})", args=(left, right), facts=facts)


@kind(2)
def paired(c: Chooser) -> Proposal | None:
    """See a last dimension of two as complex numbers."""
    value = c.value(lambda x: x.dtype == torch.float32 and {s[-1:] for s in x.shapes} == {(2,)})
    return value and Proposal(expr="torch.view_as_complex({0})", args=(value,))


@kind(8)
def conjugate(c: Chooser) -> Proposal | None:
    """Conjugate: a view with a mark on it."""
    value = _complex(c)
    if value is None:
        return None
    expr = c.one(("{0}.conj()", "{0}.conj()", "{0}.conj().resolve_conj()", "{0}.mH"))
    return Proposal(expr=expr, args=(value,))


@kind(8)
def part(c: Chooser) -> Proposal | None:
    """Take the real or the imaginary part, or both as a dimension; views all."""
    value = _complex(c)
    if value is None:
        return None
    expr = c.one(("{0}.real", "{0}.imag", "torch.view_as_real({0}.resolve_conj())"))
    return Proposal(expr=expr, args=(value,))


@kind(8)
def complex_arithmetic(c: Chooser) -> Proposal | None:
    """Combine complex numbers."""
    left = _complex(c)
    right = left and c.beside(left, lambda x: x.meta.is_complex())
    if left is None or right is None:
        return None
    one, two = left.facts.bound, right.facts.bound
    expr, bound = c.one(
        (
            ("{0} * {1}", 2 * one * two),
            ("{0} * {1}.conj()", 2 * one * two),
            ("{0} + {1}", one + two),
            ("{0} - {1}.conj()", one + two),
            ("{0} * 1j + {1}", one + two),
        )
    )
    return Proposal(expr=expr, args=(left, right), facts=Facts(bound=bound))


@kind(4)
def size_of_complex(c: Chooser) -> Proposal | None:
    """Take the size; away from zero, where it has a gradient."""
    value = _complex(c)
    facts = value and Facts(bound=2 * value.facts.bound + 3)
    return value and Proposal(expr="({0} + 2 + 1j).abs()", args=(value,), facts=facts)


@kind(4)
def complex_total(c: Chooser) -> Proposal | None:
    """Add up complex numbers."""
    value = c.value(lambda x: x.meta.is_complex() and x.dim >= 1)
    if value is None:
        return None
    facts = Facts(bound=value.facts.bound * max(x.numel() for x in value.metas))
    expr = c.one(("{0}.sum(0)", "{0}.mean(-1)", "{0}.sum()"))
    return Proposal(expr=expr, args=(value,), facts=facts)
