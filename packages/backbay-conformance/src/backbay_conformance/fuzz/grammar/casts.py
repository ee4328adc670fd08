"""Other dtypes: casts, and other readings of the same bits."""

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, kind
from backbay_conformance.fuzz.scope import EXACT, Facts, Proposal, joined

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WHOLES = (torch.int32, torch.int64)
_READ_AS = {
    torch.float32: ("int32", 0x7FFFFFFF, -0x80000000),
    torch.float64: ("int64", 0x7FFFFFFFFFFFFFFF, -0x8000000000000000),
}
"""The integers of a float's width, with all bits but the sign, and the sign."""


@kind(9)
def cast(c: Chooser) -> Proposal | None:
    """Cast between floats; a copy even where eager in float64 would have none to make."""
    value = c.value(lambda x: x.floating)
    if value is None:
        return None
    target = c.one([x for x in c.floats if x != value.dtype] or [value.dtype])
    if target == value.dtype:
        return None
    wider = torch.finfo(target).eps < torch.finfo(value.dtype).eps
    exact = value.facts.exact and wider and value.dtype != torch.float16
    facts = Facts(bound=value.facts.bound, exact=exact)
    name = str(target).removeprefix("torch.")
    return Proposal(expr=f"{{0}}.to(torch.{name}, copy=True)", args=(value,), facts=facts)


@kind(4)
def from_whole(c: Chooser) -> Proposal | None:
    """Cast integers and truth values to floats, or to other integers."""
    value = c.value(lambda x: (x.integral or x.dtype == torch.bool) and x.facts.bound <= 128)  # noqa: PLR2004
    if value is None:
        return None
    others = [*c.floats, *_WHOLES]
    target = str(c.one([x for x in others if x != value.dtype])).removeprefix("torch.")
    return Proposal(expr=f"{{0}}.to(torch.{target})", args=(value,), facts=joined(value.facts))


@kind(3)
def to_whole(c: Chooser) -> Proposal | None:
    """Cut exact floats to integers."""
    value = c.value(lambda x: x.floating and x.facts.exact)
    target = c.one(_WHOLES)
    return value and Proposal(
        expr=f"({{0}} * 4).to({target})",
        args=(value,),
        facts=Facts(bound=4 * value.facts.bound, exact=True, positive=value.facts.positive),
    )


@kind(4)
def other_integers(c: Chooser) -> Proposal | None:
    """Read integers as integers of another width: a view, from which only few bits are kept."""
    value = c.value(lambda x: x.integral and x.dim >= 1)
    if value is None:
        return None
    target = c.one([x for x in ("int32", "int64", "uint8") if x not in str(value.dtype)])
    facts = Facts(bound=15, exact=True, positive=True)
    return Proposal(expr=f"{{0}}.view(torch.{target}) & 15", args=(value,), facts=facts)


@kind(4)
def halves(c: Chooser) -> Proposal | None:
    """See integers of 64 bits as twice as many of 32, or the reverse: one memory, two dtypes."""
    value = c.value(lambda x: x.dtype in _WHOLES and x.dim >= 1)
    if value is None:
        return None
    target = "int32" if value.dtype == torch.int64 else "int64"
    return Proposal(expr=f"{{0}}.view(torch.{target})", args=(value,))


@kind(10)
def sign_by_bits(c: Chooser) -> Proposal | None:
    """Change the sign bit of floats through integers and back: neg and abs, spelled with bits."""
    value = c.value(lambda x: x.dtype in _READ_AS and x.facts.exact)
    if value is None or c.train or not c.reads_bits:
        return None
    whole, others, sign = _READ_AS[value.dtype]
    name = str(value.dtype)
    change = c.one((f"& {others}", f"^ {sign}", f"| {sign}"))
    expr = f"({{0}}.view(torch.{whole}) {change}).view({name})"
    return Proposal(expr=expr, args=(value,), facts=joined(value.facts))


@kind(10)
def bits(c: Chooser) -> Proposal | None:
    """Read the bits of exact floats, and keep some of the middle."""
    value = c.value(lambda x: x.dtype in _READ_AS and x.facts.exact)
    if value is None or c.train or not c.reads_bits:
        return None
    whole = _READ_AS[value.dtype][0]
    facts = Facts(bound=63, exact=True, positive=True)
    return Proposal(expr=f"({{0}}.view(torch.{whole}) >> 3) & 63", args=(value,), facts=facts)


@kind(10)
def pairs(c: Chooser) -> Proposal | None:
    """Read pairs of floats as complex numbers, through a dtype view."""
    value = c.value(lambda x: x.dtype == torch.float32 and x.dim >= 1)
    if value is None or c.train or not c.reads_bits:
        return None
    if any(x.shape[-1] % 2 for x in value.metas):
        return None
    return Proposal(expr="{0}.view(torch.complex64)", args=(value,))


@kind(3)
def truth(c: Chooser) -> Proposal | None:
    """Ask integers whether they are zero."""
    value = c.value(lambda x: x.integral)
    return value and Proposal(expr="{0}.bool()", args=(value,), facts=EXACT)
