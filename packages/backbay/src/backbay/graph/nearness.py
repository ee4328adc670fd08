"""Where a pattern nearly stands in a graph: all of it but one number, or one operator.

A matcher answers yes or no, and somebody who wrote a pattern for their model needs to know what
differs: that the graph has 0.7978845 where the pattern has ``math.sqrt(2 / math.pi)``, or ``x * x *
x`` where it has ``x ** 3``. It is looked for only where somebody looks on, since it takes time.
"""

import math
import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from backbay.graph.canonical import COMMUTATIVE, is_number
from backbay.graph.report import target_name

_CLOSE = 0.01
"""Numbers that differ by less, relatively, are meant to be the same."""
_MOST = 0.4
"""The share of a pattern's calls that may differ, where a whole operator does."""
_ATEN = torch.ops.aten
_COMMUTATIVE = frozenset({*COMMUTATIVE, _ATEN.add.Tensor, _ATEN.mul.Tensor})
_PRODUCTS = {operator.mul, _ATEN.mul.Tensor}
_POWERS = {operator.pow, torch.pow, _ATEN.pow.Tensor_Scalar}
_FIXED_POWERS: dict[Any, float] = {
    torch.square: 2,
    torch.sqrt: 0.5,
    torch.rsqrt: -0.5,
    torch.reciprocal: -1,
    _ATEN.sqrt.default: 0.5,
    _ATEN.rsqrt.default: -0.5,
    _ATEN.reciprocal.default: -1,
}


def nearest(
    pattern: Graph,
    graph: Graph,
    taken: Collection[Node] = (),
    *,
    tolerance: float | None = None,
    is_tolerant: bool = True,
) -> Iterator[tuple[Node, str]]:
    """Yield the nodes at which a pattern differs from the graph by one thing, and that thing.

    Args:
        pattern: its graph; both are canonical, or of ATen operators.
        graph: where it is looked for.
        taken: nodes that need no explanation.
        tolerance: of numbers, as the pattern has it.
        is_tolerant: whether a pattern can have a tolerance on such graphs.
    """
    last = next(iter(reversed(pattern.nodes))).args[0]
    root = last[0] if isinstance(last, (tuple, list)) and last else last
    if not isinstance(root, Node) or not _is_call(root):
        return
    calls = sum(_is_call(x) for x in pattern.nodes)
    told = set[Node]()
    for node in graph.nodes:
        if not _is_call(node) or node in taken:
            continue
        found = _compared(_Comparison(tolerance, is_tolerant), root, node)
        if len(found.differences) != 1 or not found.is_near(calls):
            continue
        place, words, _ = found.differences[0]
        if place not in told:
            told.add(place)
            yield place, words


@dataclass(slots=True)
class _Comparison:
    """What is known of a comparison until now."""

    tolerance: float | None
    is_tolerant: bool
    alike: int = 0
    """Calls that are the same."""
    differences: list[tuple[Node, str, bool]] = field(default_factory=list)
    """Where, what, and whether the same was meant."""
    bound: dict[Node, Any] = field(default_factory=dict)
    """Nodes of the pattern to what they are here; one that is used twice is compared once."""
    fits: bool = True
    """Whether each node of the pattern is one value everywhere."""

    def copied(self) -> "_Comparison":
        """Return another, to be tried."""
        return replace(self, differences=[*self.differences], bound=dict(self.bound))

    def is_near(self, calls: int) -> bool:
        """Whether what differs is little enough of a pattern of so many calls."""
        meant = all(x[2] for x in self.differences)
        return self.fits and (meant or (self.alike > 1 and self.alike >= calls * (1 - _MOST)))


def _compared(so_far: _Comparison, wanted: Any, given: Any, at: Node | None = None) -> _Comparison:
    """Go on with a comparison, at one node or number of the pattern and of the graph."""
    if not isinstance(wanted, Node):
        return _of_literals(so_far, wanted, given, at)
    if wanted in so_far.bound or wanted.op == "placeholder":
        so_far.fits &= so_far.bound.setdefault(wanted, given) is given
        return so_far
    so_far.bound[wanted] = given
    if not isinstance(given, Node) or not _is_call(given):
        return _differs(so_far, at, f"{given} stands where the pattern calls {_name(wanted)}")
    if wanted.target != given.target or len(wanted.args) != len(given.args):
        return _of_other_calls(so_far, wanted, given)
    found = _of_calls(so_far.copied(), wanted, given)
    new = found.differences[len(so_far.differences) :]
    if found.fits and len(new) <= 1 and all(x[2] for x in new):
        return found
    return _of_products(so_far, wanted, given) or found


def _of_other_calls(so_far: _Comparison, wanted: Node, given: Node) -> _Comparison:
    """Compare the calls of two operators: the same was meant, or what they are called with is."""
    power, own = _power(wanted), _power(given)
    if power is not None and own is not None and power[1] == own[1] and power[1] != 1:
        words = (
            f"the power {power[1]:g} is written with {_name(given)} here, and with "
            f"{_name(wanted)} in the pattern"
        )
        so_far.alike += 1
        return _compared(_differs(so_far, given, words, meant=True), power[0], own[0], given)
    words = f"it calls {_name(given)} where the pattern calls {_name(wanted)}"
    found = _differs(so_far, given, words)
    if len(wanted.args) == len(given.args):
        for mine, here in zip(wanted.args, given.args, strict=True):
            found = _compared(found, mine, here, given)
    return found


def _of_calls(so_far: _Comparison, wanted: Node, given: Node) -> _Comparison:
    so_far.alike += 1
    if wanted.kwargs.keys() != given.kwargs.keys():
        return _differs(so_far, given, f"{_name(given)} is called with other arguments")
    arguments = [wanted.args]
    if wanted.target in _COMMUTATIVE and not any(is_number(x) for x in wanted.args):
        arguments.append((wanted.args[1], wanted.args[0], *wanted.args[2:]))
    tried = []
    for order in arguments:
        one = so_far.copied()
        for mine, here in zip(order, given.args, strict=True):
            one = _compared(one, mine, here, given)
        for key, mine in wanted.kwargs.items():
            one = _compared(one, mine, given.kwargs[key], given)
        tried.append(one)
    return min(tried, key=lambda x: (not x.fits, len(x.differences), -x.alike))


def _of_products(so_far: _Comparison, wanted: Node, given: Node) -> _Comparison | None:
    """Compare two products by their factors, in any order: ``c * x * x * x`` and ``c * x ** 3``."""
    mine, here = _product(wanted), _product(given)
    if mine is None or here is None:
        return None
    bases, others = (sorted(x.powers, key=lambda y: x.powers[y]) for x in (mine, here))
    if [mine.powers[x] for x in bases] != [here.powers[x] for x in others]:
        return None
    found = so_far.copied()
    for base, other in zip(bases, others, strict=True):
        found = _compared(found, base, other, given)
    if len(found.differences) > len(so_far.differences) or not found.fits:
        return None
    if not math.isclose(mine.number, here.number, rel_tol=so_far.tolerance or 1e-12):
        return None
    found.alike += mine.calls
    own, wanteds = (", ".join(sorted(x.operators)) for x in (here, mine))
    words = f"the product is written with {own} here, and with {wanteds} in the pattern"
    if own == wanteds:
        words = "the product is put together in another way here than in the pattern"
    return _differs(found, given, words, meant=True)


def _of_literals(so_far: _Comparison, wanted: Any, given: Any, at: Node | None) -> _Comparison:
    if isinstance(wanted, (tuple, list)) and isinstance(given, (tuple, list)):
        if len(wanted) == len(given):
            for mine, here in zip(wanted, given, strict=True):
                so_far = _compared(so_far, mine, here, at)
            return so_far
    elif is_number(wanted) and is_number(given):
        return _of_numbers(so_far, wanted, given, at)
    if not isinstance(given, Node) and wanted == given:
        return so_far
    return _differs(so_far, at, f"{given} stands where the pattern has {wanted}")


def _of_numbers(so_far: _Comparison, wanted: Any, given: Any, at: Node | None) -> _Comparison:
    exact = wanted == given and type(wanted) is type(given)
    if exact or (
        math.isclose(wanted, given, rel_tol=so_far.tolerance or 0.0, abs_tol=0.0)
        and (so_far.tolerance is not None)
    ):
        return so_far
    words = f"the number is {given!r} here, and {wanted!r} in the pattern"
    if not math.isclose(wanted, given, rel_tol=_CLOSE):
        return _differs(so_far, at, words)
    apart = abs(wanted - given) / max(abs(wanted), abs(given))
    if so_far.is_tolerant:
        words += ": give the pattern a tolerance" + (f" above {apart:.0e}" if apart else "")
    return _differs(so_far, at, words, meant=True)


def _differs(
    so_far: _Comparison, at: Node | None, words: str, *, meant: bool = False
) -> _Comparison:
    if at is None:
        so_far.fits = False
    else:
        so_far.differences.append((at, words, meant))
    return so_far


@dataclass(slots=True)
class _Product:
    """A product of numbers and powers."""

    number: float = 1.0
    powers: dict[Node, float] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    calls: int = 0


def _product(node: Node) -> _Product | None:
    """Return the factors of a product, which may be products; ``None`` of what is none."""
    if node.target not in _PRODUCTS:
        return None
    made = _Product()
    left: list[Any] = [node]
    while left:
        one = left.pop()
        if is_number(one):
            made.number *= one
        elif not isinstance(one, Node):
            return None
        elif one.target in _PRODUCTS:
            made.calls += 1
            made.operators.add(_name(one))
            left += reversed(one.args)
        else:
            base, times = _factors(one)
            if base is not one:
                made.calls += 1
                made.operators.add(_name(one))
            made.powers[base] = made.powers.get(base, 0) + times
    return made


def _power(node: Node) -> tuple[Any, float] | None:
    """Return which power of what a node is: of a product of one value, of ``pow``, of a root."""
    if node.target in _FIXED_POWERS:
        return node.args[0], _FIXED_POWERS[node.target]
    if len(node.args) != 2:  # noqa: PLR2004 (all others take two)
        return None
    first, second = node.args
    if node.target in _POWERS and isinstance(second, (int, float)):
        return first, second
    if node.target in _PRODUCTS and isinstance(first, Node) and isinstance(second, Node):
        (base, times), (other, more) = _factors(first), _factors(second)
        return (base, times + more) if base is other else None
    return None


def _factors(node: Node) -> tuple[Node, float]:
    found = _power(node) if _is_call(node) else None
    if found is None or not isinstance(found[0], Node):
        return node, 1
    return found[0], found[1]


def _is_call(node: Node) -> bool:
    return node.op in {"call_function", "call_method"}


def _name(node: Node) -> str:
    return target_name(node)
