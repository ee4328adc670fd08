"""Element by element: arithmetic, comparisons, choices, integers, booleans."""

import dataclasses
import math

import torch

from backbay_conformance.fuzz.grammar.chooser import Chooser, kind
from backbay_conformance.fuzz.scope import EXACT, Facts, Proposal, joined

LARGEST_WHOLE = 100
"""Integers stay below this before they are added up, so that uint8 holds what is added to them."""

_SMOOTH = {
    "{0}.sin()": 1.0,
    "{0}.cos()": 1.0,
    "{0}.tanh()": 1.0,
    "{0}.sigmoid()": 1.0,
    "torch.nn.functional.gelu({0})": None,
    "torch.nn.functional.silu({0})": None,
    "torch.nn.functional.softplus({0})": None,
    "torch.erf({0})": 1.0,
    "({0} * {0} + 1).sqrt()": None,
    "({0} * {0} + 1).log()": None,
    "({0} * {0} + 1).rsqrt()": 1.0,
    "({0} * {0} + 1).reciprocal()": 1.0,
    "({0}.sin()).exp()": math.e,
    "({0}.cos()).expm1()": math.e,
    "torch.atan({0})": 2.0,
}
"""With the bound of what they give; None: about the bound of what they take."""


@kind(8)
def smooth(c: Chooser) -> Proposal | None:
    """Apply a smooth function."""
    value = c.value(lambda x: x.floating)
    if value is None:
        return None
    expr = c.one(list(_SMOOTH))
    bound = _SMOOTH[expr] or value.facts.bound + 1
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=bound))


@kind(4)
def kinked(c: Chooser) -> Proposal | None:
    """Apply a function with a kink, where the kink cannot be met by rounding."""
    value = c.value(lambda x: x.floating and (x.facts.exact or not c.train))
    if value is None:
        return None
    expr = c.one(("{0}.abs()", "{0}.relu()", "{0}.clamp(-0.5, 0.25)", "{0}.clamp(min=-0.75)"))
    return Proposal(expr=expr, args=(value,), facts=joined(value.facts))


@kind(3)
def negated(c: Chooser) -> Proposal | None:
    """Change the sign."""
    value = c.value(lambda x: x.floating or x.dtype in {torch.int32, torch.int64})
    facts = value and dataclasses.replace(joined(value.facts), positive=False)
    return value and Proposal(expr="-{0}", args=(value,), facts=facts)


@kind(4)
def scaled(c: Chooser) -> Proposal | None:
    """Compute with a number; with several in a row, too."""
    value = c.value(lambda x: x.floating)
    if value is None:
        return None
    forms = ("{0} * X", "{0} + X", "X - {0}", "{0} / 1.7", "{0} * 2 * X", "{0} + 1 - X")
    expr = c.one(forms).replace("X", str(c.number()))
    return Proposal(expr=expr, args=(value,), facts=Facts(bound=value.facts.bound * 3 + 3))


@kind(9)
def arithmetic(c: Chooser) -> Proposal | None:
    """Combine two floats, of one dtype or two."""
    left = c.value(lambda x: x.floating)
    right = left and c.beside(left, lambda x: x.floating)
    if left is None or right is None:
        return None
    one, two = left.facts.bound, right.facts.bound
    expr, bound = c.one(
        (
            ("{0} + {1}", one + two),
            ("{0} - {1}", one + two),
            ("{0} * {1}", one * two),
            ("{0} / ({1} * {1} + 1)", one),
            ("torch.addcmul({0}, {0}, {1}, value=0.5)", one + one * two),
            ("torch.lerp({0}, {1}, 0.25)", one + two),
            ("torch.add({0}, {1}, alpha=2)", one + 2 * two),
            ("torch.hypot({0}, {1} * {1} + 1)", one + two * two + 1),
        )
    )
    return Proposal(expr=expr, args=(left, right), facts=Facts(bound=bound))


@kind(3)
def extreme(c: Chooser) -> Proposal | None:
    """Take the larger of two; where the gradient would change hands, of exact numbers only."""
    left = c.value(lambda x: (x.floating and not c.train) or x.integral)
    right = left and c.beside(left, lambda x: x.dtype == left.dtype)
    if left is None or right is None:
        return None
    expr = c.one(("torch.maximum({0}, {1})", "torch.minimum({0}, {1})"))
    return Proposal(expr=expr, args=(left, right), facts=joined(left.facts, right.facts))


@kind(5)
def comparison(c: Chooser) -> Proposal | None:
    """Compare exact numbers, with each other or with a number."""
    left = c.value(lambda x: x.facts.exact and (x.floating or x.integral))
    if left is None:
        return None
    right = c.beside(left, lambda x: x.facts.exact and x.dtype == left.dtype)
    operator = c.one(("<", "<=", ">", ">=", "==", "!="))
    if right is None or right is left or c.chance(0.5):
        number = 2 if left.integral else 0.125
        return Proposal(expr=f"{{0}} {operator} {number}", args=(left,), facts=EXACT)
    return Proposal(expr=f"{{0}} {operator} {{1}}", args=(left, right), facts=EXACT)


@kind(5)
def choice(c: Chooser) -> Proposal | None:
    """Choose element by element."""
    mask = c.value(lambda x: x.dtype == torch.bool)
    left = mask and c.beside(mask, lambda x: not x.meta.is_complex() and x.dtype != torch.bool)
    right = left and c.beside(left, lambda x: x.dtype == left.dtype)
    if mask is None or left is None or right is None:
        return None
    if c.chance(0.3):
        args, facts = (mask, left), joined(left.facts, EXACT)
        return Proposal(expr="{1}.masked_fill({0}, 0)", args=args, facts=facts)
    facts = joined(left.facts, right.facts)
    return Proposal(expr="torch.where({0}, {1}, {2})", args=(mask, left, right), facts=facts)


@kind(3)
def logic(c: Chooser) -> Proposal | None:
    """Combine truth values."""
    left = c.value(lambda x: x.dtype == torch.bool)
    right = left and c.beside(left, lambda x: x.dtype == torch.bool)
    if left is None or right is None:
        return None
    expr = c.one(("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0} | {1}", "{0}.logical_xor({1})"))
    return Proposal(expr=expr, args=(left, right), facts=EXACT)


@kind(5)
def whole(c: Chooser) -> Proposal | None:
    """Compute with integers: signs in division and remainder, bits, shifts."""
    left = c.value(lambda x: x.integral and x.facts.bound <= LARGEST_WHOLE)
    right = left and c.beside(left, lambda x: x.integral and x.facts.bound <= LARGEST_WHOLE)
    if left is None or right is None:
        return None
    one, two = left.facts.bound, right.facts.bound
    both = left.facts.positive and right.facts.positive
    forms = [("{0} + {1}", one + two), ("{0} % 3", 3), ("{0} // 2", one)]
    forms += [("torch.bitwise_and({0}, 7)", 7)]
    if both:
        forms += [("{0} & {1}", 128), ("{0} | {1}", 128), ("{0} ^ {1}", 128), ("{0} >> 1", one)]
    if torch.uint8 not in {left.dtype, right.dtype}:
        forms += [("{0} - {1}", one + two), ("{0} * 3 - 2", one * 3 + 2)]
        forms += [("torch.div({0}, 2, rounding_mode='trunc')", one), ("{0}.remainder(-3)", 3)]
        forms += [("{0}.fmod(3)", 3), ("{0} * {1}", one * two)]
    expr, bound = c.one(forms)
    if torch.uint8 in {left.dtype, right.dtype} and bound > 255:  # noqa: PLR2004
        return None
    signed = "-" in expr or "remainder" in expr
    facts = Facts(bound=bound, exact=True, positive=both and not signed)
    args = tuple(x for i, x in enumerate((left, right)) if f"{{{i}}}" in expr)
    return Proposal(expr=expr, args=args, facts=facts)


@kind(2)
def mixed(c: Chooser) -> Proposal | None:
    """Combine a float with integers or truth values: type promotion."""
    left = c.value(lambda x: x.floating)
    right = left and c.beside(left, lambda x: x.integral or x.dtype == torch.bool)
    if left is None or right is None or right.facts.bound > LARGEST_WHOLE:
        return None
    expr = c.one(("{0} * {1}", "{0} + {1}", "{1} - {0}" if right.integral else "{0} * {1} + 1"))
    bound = (left.facts.bound + 1) * (right.facts.bound + 1)
    return Proposal(expr=expr, args=(left, right), facts=Facts(bound=bound))
