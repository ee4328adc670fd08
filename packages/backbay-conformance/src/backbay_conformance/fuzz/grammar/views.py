"""Views: other names for the same memory."""

from backbay_conformance.fuzz.grammar.chooser import Chooser, kind
from backbay_conformance.fuzz.scope import Proposal, Value, joined


def _of(value: Value, expr: str, gives: int = 1) -> Proposal:
    return Proposal(expr=expr, args=(value,), gives=gives)


def _with_dims(c: Chooser, least: int) -> Value | None:
    return c.value(lambda x: x.dim >= least)


@kind(6)
def slicing(c: Chooser) -> Proposal | None:
    """Cut a slice, whose ends may be symbols."""
    value = _with_dims(c, 1)
    if value is None:
        return None
    cut = c.one(("1:", ":-1", "::2", "1::2", ":2", "-2:", ":{0}.shape[0] // 2"))
    dim = 0 if "shape" in cut else c.rng.randrange(value.dim)
    return _of(value, f"{{0}}[{':, ' * dim}{cut}]")


@kind(3)
def empty_slice(c: Chooser) -> Proposal | None:
    """Cut a slice with nothing in it."""
    value = _with_dims(c, 1)
    if value is None or not c.chance(0.3):
        return None
    return _of(value, "{0}[:0]")


@kind(4)
def select(c: Chooser) -> Proposal | None:
    """Take one row."""
    value = c.value(lambda x: x.dim >= 1 and x.least(0) >= 1)
    if value is None:
        return None
    dim = c.dim(value, least=1)
    return _of(value, f"{{0}}.select({dim}, {c.one((0, -1))})")


@kind(3)
def narrow(c: Chooser) -> Proposal | None:
    """Take a middle part, whose length is an expression of a size."""
    value = c.value(lambda x: x.dim >= 1 and x.least(0) >= 3)  # noqa: PLR2004
    return value and _of(value, "{0}.narrow(0, 1, {0}.shape[0] - 2)")


@kind(5)
def transpose(c: Chooser) -> Proposal | None:
    """Swap two dimensions."""
    value = _with_dims(c, 2)
    if value is None:
        return None
    first, second = c.rng.sample(range(value.dim), 2)
    return _of(value, f"{{0}}.transpose({first}, {second})")


@kind(3)
def permute(c: Chooser) -> Proposal | None:
    """Order the dimensions anew."""
    value = _with_dims(c, 2)
    if value is None:
        return None
    order = c.rng.sample(range(value.dim), value.dim)
    return _of(value, f"{{0}}.permute({', '.join(map(str, order))})")


@kind(3)
def expand(c: Chooser) -> Proposal | None:
    """Repeat without memory; as often as a size says, or twice."""
    value = c.value(lambda x: x.dim <= 2)  # noqa: PLR2004
    if value is None:
        return None
    times = c.one(("2", "{0}.shape[0]")) if value.dim else "2"
    return _of(value, f"{{0}}.unsqueeze(0).expand({times}{', -1' * value.dim})")


@kind(3)
def unfold(c: Chooser) -> Proposal | None:
    """Look through windows: overlapping, and seldom with gaps.

    Torch loses what lies in the gaps when a window is written to (pytorch#198102): programs that
    show nothing but that would hide what else they could show.
    """
    value = c.value(lambda x: 1 <= x.dim <= 2)  # noqa: PLR2004
    if value is None:
        return None
    dim = c.dim(value, least=3)
    if dim is None:
        return None
    size, step = c.one(((2, 2), (1, 2), (2, 3)) if c.chance(0.1) else ((2, 1), (3, 1)))
    return _of(value, f"{{0}}.unfold({dim}, {size}, {step})")


@kind(3)
def as_strided(c: Chooser) -> Proposal | None:
    """Write the strides by hand; of tensors that start where their memory does."""
    value = c.value(lambda x: x.dim >= 1 and all(m.is_contiguous() for m in x.metas))
    if value is None:
        return None
    least = min(x.numel() for x in value.metas)
    if least < 4:  # noqa: PLR2004
        return None
    size = least // 2
    form = c.one((f"({size},), (2,)", f"({size}, 2), (1, 1)", f"(2, {size}), ({size}, 1)"))
    return _of(value, f"{{0}}.as_strided({form}, {{0}}.storage_offset())")


@kind(4)
def view(c: Chooser) -> Proposal | None:
    """Flatten, or cut a dimension in two, with sizes in the shape."""
    value = _with_dims(c, 1)
    if value is None:
        return None
    forms = ["-1", "1, -1"]
    if value.dim == 2:  # noqa: PLR2004
        forms += ["{0}.shape[0] * {0}.shape[1]", "{0}.shape[1], {0}.shape[0]"]
    if all(x.shape[-1] % 2 == 0 and x.numel() for x in value.metas):
        forms += [", ".join(f"{{0}}.shape[{i}]" for i in range(value.dim - 1)) + ", -1, 2"]
    return _of(value, f"{{0}}.view({c.one(forms).lstrip(', ')})")


@kind(3)
def reshape(c: Chooser) -> Proposal | None:
    """Flatten: a view or a copy, as the strides allow."""
    value = _with_dims(c, 2)
    return value and _of(value, c.one(("{0}.reshape(-1)", "{0}.flatten(0, 1)")))


@kind(3)
def diagonal(c: Chooser) -> Proposal | None:
    """Take a diagonal."""
    value = _with_dims(c, 2)
    return value and _of(value, f"{{0}}.diagonal({c.one(('', '1', '-1'))})")


@kind(3)
def squeeze(c: Chooser) -> Proposal | None:
    """Add a dimension of one, or take one away."""
    value = c.value()
    if value is None:
        return None
    ones = [x for x in range(value.dim) if {m.shape[x] for m in value.metas} == {1}]
    if ones:
        return _of(value, f"{{0}}.squeeze({c.one(ones)})")
    return _of(value, f"{{0}}.unsqueeze({c.rng.randrange(value.dim + 1)})")


@kind(3)
def chunk(c: Chooser) -> Proposal | None:
    """Cut in two."""
    value = c.value(lambda x: x.dim >= 1 and x.least(0) >= 2)  # noqa: PLR2004
    return value and _of(value, "{0}.chunk(2, 0)", gives=2)


@kind(3)
def split(c: Chooser) -> Proposal | None:
    """Cut off the last row."""
    value = c.value(lambda x: x.dim >= 1 and x.least(0) >= 2)  # noqa: PLR2004
    return value and _of(value, "{0}.split([{0}.shape[0] - 1, 1], 0)", gives=2)


@kind(2)
def unbind(c: Chooser) -> Proposal | None:
    """Take all rows apart."""
    value = c.value(lambda x: x.dim >= 1 and {s[-1] for s in x.shapes} in ({2}, {3}))
    return value and _of(value, "{0}.unbind(-1)", gives=value.meta.shape[-1])


@kind(3)
def flip(c: Chooser) -> Proposal | None:
    """Turn around; a copy, though it looks like a view."""
    value = _with_dims(c, 1)
    return value and _of(value, f"{{0}}.flip({c.rng.randrange(value.dim)})")


@kind(3)
def another_name(c: Chooser) -> Proposal | None:
    """Alias without changing anything: what returns itself, or all of itself."""
    value = c.value()
    if value is None:
        return None
    forms = ["{0}.detach()", "{0}.view_as({0})", "{0}.contiguous()"]
    forms += ["{0}[:]", "{0}.expand_as({0})"] if value.dim else []
    forms = forms[1:] if c.train else forms
    return _of(value, c.one(forms))


@kind(3)
def copy(c: Chooser) -> Proposal | None:
    """Copy to memory of its own."""
    value = c.value()
    return value and _of(value, "{0}.clone()")


@kind(2)
def movement(c: Chooser) -> Proposal | None:
    """Move elements about."""
    value = _with_dims(c, 1)
    if value is None:
        return None
    dim = c.rng.randrange(value.dim)
    forms = [f"{{0}}.roll(1, {dim})", f"torch.cat([{{0}}, {{0}}], {dim})"]
    forms += [f"torch.stack([{{0}}, {{0}}], {dim})", "{0}.repeat(" + "1, " * (value.dim - 1) + "2)"]
    if value.dim >= 2:  # noqa: PLR2004
        forms += ["{0}.tril()", "{0}.triu(1)", "{0}.movedim(0, -1)", "{0}.swapaxes(0, 1)"]
    expr = c.one(forms)
    if any(x in expr for x in ("cat", "stack", "repeat", "tri")):
        return Proposal(expr=expr, args=(value,), facts=joined(value.facts))
    return _of(value, expr)
