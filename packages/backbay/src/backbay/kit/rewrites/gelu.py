"""Replace GELU that is spelled out by one operator: the exact form, and the approximation by tanh.

::

    before:  0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    after:   torch.nn.functional.gelu(x, approximate="tanh")

    before:  x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    after:   torch.nn.functional.gelu(x)

Factors and terms may stand in any order, the half with any factor, and the cube may be ``x**3``,
``torch.pow(x, 3)`` or ``x * x * x``, its factor anywhere in it. Numbers match within a millionth:
0.7978845608 is ``math.sqrt(2 / math.pi)``. ``x`` must be of a floating-point dtype.

The rewrite is not bit for bit: spelled out, each step is rounded to the dtype, and ``gelu`` rounds
once. So results come nearer to the truth.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.canonical import canonical_target
from backbay.graph.match import Condition, Pattern, is_floating_point
from backbay.kit.passes import rewrite_pass

_TOLERANCE = 1e-6
_SCALE, _CUBIC, _ROOT = math.sqrt(2 / math.pi), 0.044715, math.sqrt(2)

Formula = Callable[[Any], Any]
Outer = Callable[[Any, Any], Any]

_CUBES: tuple[Formula, ...] = (
    lambda x: x**3 * _CUBIC,
    lambda x: (x * x * x) * _CUBIC,
    lambda x: (x * _CUBIC) * x * x,
    lambda x: (x * _CUBIC) * (x * x),
    lambda x: (x * x * _CUBIC) * x,
)
_SQUARES: tuple[Formula, ...] = (
    lambda x: x**2 * _CUBIC,
    lambda x: (x * x) * _CUBIC,
    lambda x: (x * _CUBIC) * x,
)
_SUMS: tuple[Outer, ...] = (lambda x, cube: (x + cube) * _SCALE,)
_PRODUCTS: tuple[Outer, ...] = (
    lambda x, square: (x * _SCALE) * (square + 1),
    lambda x, square: (x * (square + 1)) * _SCALE,
)
_ERRORS: tuple[Formula, ...] = (lambda x: x / _ROOT, lambda x: x * (1 / _ROOT))
_HALVES: tuple[Outer, ...] = (
    lambda x, curve: (x * 0.5) * (curve + 1),
    lambda x, curve: (x * (curve + 1)) * 0.5,
    lambda x, curve: x * ((curve + 1) * 0.5),
)


def _spelled(half: Outer, curve: Formula, inner: Formula) -> Formula:
    return lambda x: half(x, curve(inner(x)))


def _inner(outer: Outer, power: Formula) -> Formula:
    return lambda x: outer(x, power(x))


def _spellings(curve: Formula, inners: list[Formula]) -> list[Formula]:
    return [_spelled(half, curve, inner) for half, inner in itertools.product(_HALVES, inners)]


def _exact(x: Any) -> Any:
    return F.gelu(x)


def _approximate(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


_cubic = [_inner(*x) for x in itertools.product(_SUMS, _CUBES)]
_factored = [_inner(*x) for x in itertools.product(_PRODUCTS, _SQUARES)]

_APPROXIMATE = _spellings(torch.tanh, _cubic + _factored)
_EXACT = _spellings(torch.erf, list(_ERRORS))


def approximate_gelu(*conditions: Condition) -> tuple[Pattern, ...]:
    """Return the patterns of the approximation by tanh, for where further conditions hold."""
    return tuple(
        Pattern(
            match=x,
            replacement=_approximate,
            name="GELU by tanh",
            conditions=(is_floating_point(), *conditions),
            tolerance=_TOLERANCE,
        )
        for x in _APPROXIMATE
    )


def may_be_approximate(graph: Graph) -> bool:
    """Whether a graph may hold the approximation spelled out; much cheaper than to look."""
    return any(canonical_target(x) is torch.tanh for x in graph.nodes)


_exact_gelu = functools.partial(
    Pattern,
    replacement=_exact,
    name="GELU by erf",
    conditions=(is_floating_point(),),
    tolerance=_TOLERANCE,
)
rewrite_gelu = rewrite_pass(
    *approximate_gelu(),
    *(_exact_gelu(match=x) for x in _EXACT),
    name="rewrite_gelu",
    summary="GELU that is spelled out is one operator",
)
"""Turn GELU that is spelled out into ``torch.nn.functional.gelu``; for Dynamo's graph."""
