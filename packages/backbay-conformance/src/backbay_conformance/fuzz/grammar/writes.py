"""Writing into memory that has other names: inputs, buffers, intermediates, and views of them."""

import dataclasses

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, fits_into, kind
from backbay_conformance.fuzz.grammar.indexing import index_for
from backbay_conformance.fuzz.scope import EXACT, Facts, Proposal, Value, joined

_VIEWS = (
    ("{0}", 3),
    ("{0}[1:]", 2),
    ("{0}[::2]", 2),
    ("{0}[0]", 2),
    ("{0}[..., 0]", 2),
    ("{0}.transpose(0, -1)", 2),
    ("{0}.view(-1)", 1),
    ("{0}.view(-1)[1::2]", 1),
    ("{0}.diagonal()", 1),
    ("{0}.unsqueeze(0)", 1),
    ("{0}.narrow(0, 0, {0}.shape[0] // 2)", 1),
)
"""Through which something is written, with how often."""


def _target(c: Chooser, *, floating: bool | None = None) -> Value | None:
    def wanted(value: Value) -> bool:
        return value.writable and (floating is None or value.floating == floating)

    def seen(value: Value) -> bool:
        """Whether anything else would see it written: there lie the bugs."""
        return value.given or sum(x.memory is value.memory for x in c.scope.values) > 1

    if c.chance(0.5):
        return c.value(lambda x: wanted(x) and seen(x)) or c.value(wanted)
    return c.value(wanted)


def _through(c: Chooser, value: Value) -> str:
    if not value.dim:
        return "{0}"
    views = [x for x, often in _VIEWS for _ in range(often)]
    return c.one(views)


def _seen(value: Value, view: str) -> tuple[torch.Size, ...] | None:
    try:
        found = [eval(view.format("x"), {"x": x.detach()}) for x in value.metas]  # noqa: S307
    except (RuntimeError, IndexError, TypeError):
        return None
    return tuple(x.shape for x in found)


def _source(c: Chooser, value: Value, view: str) -> tuple[Value, str] | None:
    """Draw what is written: other memory, or a copy of the same."""
    shapes = _seen(value, view)
    if shapes is None:
        return None
    source = c.value(
        lambda x: x.dtype == value.dtype and fits_into(x, shapes) and not x.meta.is_conj()
    )
    if source is None:
        return None
    return source, "{1}.clone()" if source.memory is value.memory else "{1}"


def _write(expr: str, args: tuple[Value, ...], facts: Facts) -> Proposal:
    return Proposal(expr=expr, args=args, facts=EXACT, writes=facts, gives=0)


@kind(20)
def in_place_number(c: Chooser) -> Proposal | None:
    """Compute in place with a number."""
    value = _target(c, floating=True)
    if value is None:
        return None
    view, bound = _through(c, value), value.facts.bound
    form, facts = c.one(
        (
            ("mul_(0.75)", Facts(bound=bound)),
            ("add_(1.5)", Facts(bound=bound + 2)),
            ("sub_(0.3)", Facts(bound=bound + 1)),
            ("sin_()", Facts()),
            ("sigmoid_()", Facts()),
            ("tanh_()", Facts()),
            ("zero_()", EXACT),
            ("fill_(0.5)", EXACT),
            ("neg_()", joined(value.facts)),
        )
    )
    return _write(f"{view}.{form}", (value,), facts)


@kind(24)
def in_place_tensor(c: Chooser) -> Proposal | None:
    """Compute in place with another tensor."""
    value = _target(c, floating=True)
    view = _through(c, value) if value is not None else ""
    source = value and _source(c, value, view)
    if value is None or source is None:
        return None
    one, two = value.facts.bound, source[0].facts.bound
    form, bound = c.one((("mul_", one * two), ("add_", one + two), ("sub_", one + two)))
    return _write(f"{view}.{form}({source[1]})", (value, source[0]), Facts(bound=bound))


@kind(18)
def copied_into(c: Chooser) -> Proposal | None:
    """Copy into, by method or by assignment."""
    value = _target(c)
    view = _through(c, value) if value is not None else ""
    source = value and _source(c, value, view)
    if value is None or source is None:
        return None
    expr = f"{view}.copy_({source[1]})"
    if view.endswith("]") and c.chance(0.5):
        expr = f"{view} = {source[1]}"
    return _write(expr, (value, source[0]), joined(source[0].facts))


@kind(10)
def cast_into(c: Chooser) -> Proposal | None:
    """Copy into memory of another dtype."""
    value = _target(c, floating=True)
    view = _through(c, value) if value is not None else ""
    shapes = value and _seen(value, view)
    if value is None or shapes is None:
        return None
    source = c.value(
        lambda x: x.dtype != value.dtype and not x.meta.is_complex() and fits_into(x, shapes)
    )
    if source is None or source.memory is value.memory:
        return None
    facts = Facts(bound=source.facts.bound, exact=source.facts.exact and not source.floating)
    return _write(f"{view}.copy_({{1}})", (value, source), facts)


@kind(12)
def masked_into(c: Chooser) -> Proposal | None:
    """Fill where a mask says."""
    value = c.value(lambda x: x.writable and x.dtype != torch.bool and not x.meta.is_complex())
    mask = value and c.value(lambda x: x.dtype == torch.bool and fits_into(x, value.shapes))
    if value is None or mask is None or mask.memory is value.memory:
        return None
    if mask.shapes == value.shapes and c.chance(0.3):
        return _write("{0}[{1}] = 1", (value, mask), EXACT)
    return _write("{0}.masked_fill_({1}, 2)", (value, mask), Facts(bound=2, exact=True))


@kind(16)
def indexed_into(c: Chooser) -> Proposal | None:
    """Write rows by index; no row twice, unless all are added up."""
    value = c.value(lambda x: x.writable and x.dim >= 1)
    index = value and index_for(c, value)
    if value is None or index is None or index.memory is value.memory:
        return None
    rows = tuple((*i, *v[1:]) for i, v in zip(index.shapes, value.shapes, strict=True))
    source = c.value(
        lambda x: (
            x.dtype == value.dtype
            and x.memory is not value.memory
            and tuple(map(tuple, x.shapes)) == rows
        )
    )
    if source is None or c.chance(0.3):
        return _write("{0}[{1}] = 1", (value, index), EXACT)
    facts = joined(value.facts, source.facts)
    added = Facts(bound=value.facts.bound + source.facts.bound, exact=value.integral)
    forms = [("{0}[{1}] = {2}", facts), ("{0}.index_copy_(0, {1}, {2})", facts)]
    if value.dtype != torch.bool:
        forms.append(("{0}.index_put_(({1},), {2}, accumulate=True)", added))
        forms.append(("{0}.index_add_(0, {1}, {2})", added))
    if value.dim == 1:
        forms.append(("{0}.scatter_(0, {1}, {2})", facts))
        forms.append(("{0}.scatter_add_(0, {1}, {2})", added))
    expr, after = c.one(forms)
    return _write(expr, (value, index, source), after)


@kind(10)
def whole_in_place(c: Chooser) -> Proposal | None:
    """Compute in place with integers and truth values."""
    value = c.value(lambda x: x.writable and x.integral and x.facts.bound <= 50)  # noqa: PLR2004
    if value is None:
        return None
    view, bound = _through(c, value), value.facts.bound
    form = c.one(("add_(3)", "mul_(2)", "bitwise_and_(5)", "fill_(4)", "remainder_(3)"))
    return _write(
        f"{view}.{form}",
        (value,),
        Facts(bound=2 * bound + 5, exact=True, positive=value.facts.positive),
    )


@kind(12)
def complex_in_place(c: Chooser) -> Proposal | None:
    """Write into complex memory, through its parts and its conjugate."""
    value = c.value(lambda x: x.writable and x.meta.is_complex())
    if value is None:
        return None
    plain = "{0}.resolve_conj()" if value.meta.is_conj() else "{0}"
    forms = ["{0}.mul_(0.5)", "{0}.conj_physical_()", "{0}.imag.mul_(0.5)", "{0}.real.add_(1)"]
    forms += [
        "{0}.conj().mul_(0.5)",
        "{0}.conj().imag.neg_()",
        f"torch.view_as_real({plain}).neg_()",
    ]
    return _write(c.one(forms), (value,), Facts(bound=value.facts.bound + 1))


@kind(8)
def bits_in_place(c: Chooser) -> Proposal | None:
    """Clear the sign of exact floats through an integer view of their memory."""
    value = c.value(lambda x: x.writable and x.dtype == torch.float32 and x.facts.exact)
    if value is None or c.train or not c.reads_bits:
        return None
    form = c.one(("bitwise_and_(0x7FFFFFFF)", "bitwise_xor_(-0x80000000)"))
    return _write(f"{{0}}.view(torch.int32).{form}", (value,), joined(value.facts))


@kind(4)
def reshaped_in_place(c: Chooser) -> Proposal | None:
    """Change what a name means, not what is in memory: metadata is mutated."""
    value = c.value(lambda x: x.writable and not x.given and x.dim == 2)  # noqa: PLR2004
    if value is None:
        return None
    facts = dataclasses.replace(value.facts)
    expr = c.one(("{0}.t_()", "{0}.unsqueeze_(0)", "{0}.transpose_(0, 1)"))
    return _write(expr, (value,), facts)
