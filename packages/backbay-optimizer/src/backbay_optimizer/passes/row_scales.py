"""The scale of each row, as graphs of Dynamo's make it of the row's largest magnitude."""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound
from backbay.graph.values import value_of
from backbay.kit.passes import NotApplicable
from backbay_optimizer.kernels import conditions
from backbay_optimizer.passes.norm_forms import FACTORS, is_cast, operands

CLAMPS = (torch.clamp, torch.clip, "clamp", "clip")
QUOTIENTS = (operator.truediv, torch.div, torch.true_divide, "div", "true_divide")
MAGNITUDES = (torch.abs, torch.absolute, "abs", "absolute", operator.abs, abs)
WIDE = (torch.float32, torch.float64)

_LEAST = (torch.clamp_min, "clamp_min")
_RECIPROCALS = (torch.reciprocal, "reciprocal")
_LARGEST = (torch.amax, "amax")
_MAXIMA = (torch.max, "max")
_UNSQUEEZES = (torch.unsqueeze, "unsqueeze")


class RowScale(NamedTuple):
    """A number for each row, as it is made of the largest magnitude: max(that, floor) / most."""

    floor: float = 0.0
    """What the magnitude counts as at least."""
    most: float = 1.0
    is_inverse: bool = False
    """Whether it is ``most / max(magnitude, floor)``."""

    def at_least(self, number: float) -> "RowScale":
        """Return it bounded from below."""
        if self.is_inverse or not number >= 0:  # NaN, too
            raise NotApplicable("its scale has a bound of another kind")
        return self._replace(floor=max(self.floor, number * self.most))

    def times(self, number: float) -> "RowScale":
        """Return its product with a number."""
        if not 0 < number < math.inf:
            raise NotApplicable("its scale is not positive")
        factor = number if self.is_inverse else 1 / number
        return self._replace(most=self.most * factor)

    def turned(self, number: float) -> "RowScale":
        """Return a number divided by it."""
        return self.times(1 / number if number else 0)._replace(is_inverse=not self.is_inverse)


class Scales(NamedTuple):
    """Scales of the same rows, one made of another."""

    found: dict[Node, RowScale]
    """In their order; the first may be a cast of the largest magnitude."""
    magnitude: Node
    parts: list[Node]
    """From the magnitude to the first scale."""


Change = Callable[[RowScale], RowScale]


def behind_casts(node: Any) -> list[Node]:
    """Return a node and what it is a cast of, and so on, to the first that is none.

    Rounding to 16 bits between, as eager does, is left out.
    """
    found = [node]
    while is_cast(node) and value_of(node).dtype in conditions.DTYPES:
        node = first_input(node)
        found.append(node)
    return found


def scales_behind(by: Node) -> Scales | None:
    """Return the scales on the way to a node, which is the last; None where it is something else.

    Raises:
        NotApplicable: it is a scale of another kind.
    """
    way: list[tuple[Node, Change]] = []
    at: Any = by
    while not is_call(at, _LARGEST) and not _is_maximum(at):
        step = _step(at) if isinstance(at, Node) and at.op.startswith("call") else None
        if step is None:
            return None
        before, change = step
        way.append((at, change))
        at = before
    parts = [at]
    if is_call(at, (operator.getitem,)):
        at = first_input(at)
        parts.append(at)
    given, before = bound(at, ("input", "dim", "keepdim")), first_input(at)
    dims = given["dim"] if isinstance(given.get("dim"), list | tuple) else [given.get("dim")]
    if not isinstance(before, Node) or list(dims) not in ([-1], [value_of(before).dim() - 1]):
        return None
    behind = behind_casts(before)
    if not is_call(behind[-1], MAGNITUDES):
        return None
    scale, found = RowScale(), {}
    for node, change in reversed(way):
        scale = found[node] = change(scale)
    return Scales(found, behind[-1], [*parts, *behind])


def _is_maximum(node: Any) -> bool:
    if not is_call(node, (operator.getitem,)) or node.args[1] != 0:
        return False
    of = first_input(node)
    return is_call(of, _MAXIMA) and type(bound(of, ("input", "dim")).get("dim")) is int


def _step(node: Node) -> tuple[Any, Change] | None:
    """Return what a scale is made of, and how that changes it; None where it is made otherwise."""
    dtype = value_of(node).dtype
    if is_cast(node):
        is_exact = dtype in WIDE or dtype == value_of(first_input(node)).dtype
        return (first_input(node), lambda scale: scale) if is_exact else None
    if is_call(node, _UNSQUEEZES):
        given = bound(node, ("input", "dim"))
        last = value_of(node).dim() - 1
        return (first_input(node), lambda scale: scale) if given.get("dim") in {-1, last} else None
    if is_call(node, (*CLAMPS, *_LEAST)):
        return _bounded(node)
    return _computed(node) if dtype in WIDE else None


def _bounded(node: Node) -> tuple[Any, Change] | None:
    given = bound(node, ("input", "min", "max"))
    least = given.get("min")
    if given.get("max") is not None or type(least) not in {int, float}:
        return None
    rounded = float(torch.tensor(least, dtype=value_of(node).dtype))
    return first_input(node), lambda scale: scale.at_least(rounded)


def _computed(node: Node) -> tuple[Any, Change] | None:
    if is_call(node, _RECIPROCALS):
        return first_input(node), lambda scale: scale.turned(1.0)
    one, other = operands(node, (*FACTORS, *QUOTIENTS))
    is_product = is_call(node, FACTORS)
    if is_product and not isinstance(one, Node):
        one, other = other, one
    if isinstance(one, Node) and type(other) in {int, float}:
        number = float(other)
        return one, lambda scale: scale.times(number if is_product else 1 / (number or math.inf))
    if isinstance(other, Node) and type(one) in {int, float}:
        return other, lambda scale: scale.turned(float(one))
    return None
