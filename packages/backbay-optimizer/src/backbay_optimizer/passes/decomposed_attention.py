"""Attention that is written out in a graph, from the product of queries and keys to that of values.

::

    scores = torch.matmul(q, k.transpose(-2, -1)) * scale + bias
    torch.matmul(F.softmax(scores, dim=-1), v)

Between the products may stand, in this order: factors; what is added, and what is filled in where a
mask says so; the softmax, in single precision or not; dropout. Products may be written ``matmul``,
``@``, ``bmm`` or ``einsum``.
"""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound
from backbay.graph.values import value_of

PRODUCTS = (torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__", torch.einsum)
Order = tuple[int, ...] | None
"""How dimensions are exchanged, as ``permute`` takes it; None where they are as they should be."""
_PAIR = 2
_SOFTMAXES = (F.softmax, torch.softmax, "softmax")
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_FACTORS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_DIVISORS = (operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_")
_FILLS = (torch.masked_fill, "masked_fill", "masked_fill_")
_CASTS = ("to", "float", "type", "type_as", "half", "bfloat16")
_TERMS = 2

_Above = tuple[list[Node], tuple["Node | Fill", ...], float, tuple["Operand", "Operand"]]
"""Nodes, the product last; what changes scores; the factor; and the operands."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What a product reads."""

    node: Node
    order: Order
    """Of its dimensions, to be what ``matmul`` takes."""


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Scores that are set to a number."""

    where: Node
    """A mask."""
    holds: bool
    """What the mask is where they are."""
    number: float
    """As their dtype has it."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Attention that is written out."""

    query: Operand
    keys: Operand
    """Transposed, as the product takes them: (..., width, keys)."""
    value: Operand
    order: Order
    """Of the result, from that of the product of weights and values."""
    scale: float
    changes: tuple[Node | Fill, ...]
    """What is added to the scores, or filled in, in this order."""
    drops: bool
    """Whether dropout takes weights away."""
    inside: tuple[Node, ...]
    """All its nodes, the last first."""

    @property
    def node(self) -> Node:
        """The product with the values."""
        return self.inside[0]

    @property
    def scores(self) -> Node:
        """The product of queries and keys."""
        return self.inside[-1]

    @property
    def reads(self) -> list[Node]:
        """What it reads."""
        return [*(x.node for x in (self.query, self.keys, self.value)), *self.changed]

    @property
    def changed(self) -> list[Node]:
        """What it reads to change the scores."""
        return [x.where if isinstance(x, Fill) else x for x in self.changes]

    @property
    def added(self) -> list[Node]:
        """What is added to the scores."""
        return [x for x in self.changes if not isinstance(x, Fill)]


def written_out(graph_module: GraphModule) -> Iterator[Written]:
    """Return the attention that is written out in a graph, nothing of which is read elsewhere."""
    for node in list(graph_module.graph.nodes):
        for weights, value, order in weighted_of(node):
            found = _read(node, weights, value, order)
            if found is not None:
                yield found
                break


def _read(place: Node, weights: Node, value: Operand, order: Order) -> Written | None:
    inside, node, drops = [place], weights, False
    while _is_cast(node) or effects.is_dropout(node):
        drops = drops or (effects.is_dropout(node) and effects.drops(node))
        inside.append(node)
        node = first_input(node)
    if not is_call(node, _SOFTMAXES):
        return None
    given, softmax = bound(node, ("input", "dim")), value_of(node)
    if not isinstance(softmax, torch.Tensor) or given.get("dim") not in {-1, softmax.dim() - 1}:
        return None
    inside.append(node)
    above = _scores(first_input(node))
    if above is None:
        return None
    rest, changes, scale, operands = above
    inside += rest
    if any(not x.users.keys() <= set(inside) for x in inside[1:]):
        return None  # a cast like another node reads that, too
    return Written(
        query=operands[0],
        keys=operands[1],
        value=value,
        order=order,
        scale=scale,
        changes=changes,
        drops=drops,
        inside=tuple(inside),
    )


def _scores(node: Any) -> _Above | None:
    """Go up from a softmax to the product."""
    inside: list[Node] = []
    changes: list[Node | Fill] = []
    while isinstance(node, Node):
        inside.append(node)
        fill = _fill(node)
        if is_call(node, _SUMS):
            node, other = _terms(node)
            changes.append(other)
        elif fill is not None:
            node = fill[0]
            changes.append(fill[1])
        elif _is_cast(node):
            node = first_input(node)
        else:
            return _product(node, inside, changes)
    return None


def _product(node: Node, inside: list[Node], changes: list[Node | Fill]) -> _Above | None:
    """Go up through factors to the product."""
    scale = 1.0
    inside.pop()
    while _is_cast(node) or is_call(node, (*_FACTORS, *_DIVISORS)):
        factor = 1.0 if _is_cast(node) else _factor(node)
        if factor is None:
            return None
        inside.append(node)
        scale *= factor
        node = next(x for x in node.args if isinstance(x, Node))
    inside.append(node)
    operands = scores_of(node)
    if operands is None:
        return None
    return inside, tuple(reversed(changes)), scale, operands


def _factor(node: Node) -> float | None:
    """Return the number that a node multiplies by; None where it is none."""
    if len(node.args) != _TERMS or node.kwargs:
        return None
    one, other = node.args
    if isinstance(one, int | float) and is_call(node, _FACTORS):
        one, other = other, one
    if not isinstance(one, Node) or not isinstance(other, int | float):
        return None
    factor = float(other)
    if not math.isfinite(factor) or factor == 0.0:
        return None
    return 1 / factor if is_call(node, _DIVISORS) else factor


def _terms(node: Node) -> tuple[Node | None, Any]:
    """Return the scores, which come from a product, and what is added to them."""
    if len(node.args) != _TERMS or node.kwargs:
        return None, None
    one, other = node.args
    if not isinstance(one, Node) or not isinstance(other, Node):
        return None, None
    if _comes_from_product(one):
        return one, other
    is_in_place = node.target in {operator.iadd, "add_"}  # then the left term is written
    return (None, None) if is_in_place else (other, one)


def _comes_from_product(node: Any) -> bool:
    while isinstance(node, Node):
        if is_product(node):
            return True
        known = (*_SUMS, *_FACTORS, *_DIVISORS, *_FILLS, torch.where)
        if not _is_cast(node) and not is_call(node, known):
            return False
        terms = node.args[1:] if node.target is torch.where else node.args
        node = next((x for x in terms if isinstance(x, Node)), None)
    return False


def _fill(node: Node) -> tuple[Node, Fill] | None:
    """Read what fills a number in: the scores, and how."""
    if len(node.args) != _TERMS + 1 or node.kwargs:
        return None
    if is_call(node, _FILLS):
        scores, mask, number = node.args
        holds = True
    elif node.target is torch.where:
        mask, scores, number = node.args
        holds = not isinstance(scores, Node)
        if holds:
            scores, number = number, scores
    else:
        return None
    if not isinstance(scores, Node) or not isinstance(mask, Node):
        return None
    if not isinstance(number, int | float) or not isinstance(value_of(node), torch.Tensor):
        return None
    number = torch.tensor(number, dtype=torch.float64).to(value_of(node).dtype).item()
    return scores, Fill(where=mask, holds=holds, number=number)


def _is_cast(node: Any) -> bool:
    """Whether a node gives the same numbers in another floating-point dtype, or in its own."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target not in _CASTS:
        return False
    one, other = value_of(node), value_of(first_input(node))
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.is_floating_point() and other.is_floating_point() and one.device == other.device


def is_product(node: Any) -> bool:
    """Return whether a node calls a product."""
    return is_call(node, PRODUCTS)


def scores_of(node: Any) -> tuple[Operand, Operand] | None:
    """Return the operands of a product whose result is ``matmul``'s of them.

    None where it is no product of two tensors, or one with its result in another order.
    """
    given = _operands(node)
    if given is None:
        return None
    one, other, spelt = given
    if spelt is None:
        return Operand(node=one, order=None), Operand(node=other, order=None)
    left, right, result = spelt
    if len(result) < _PAIR or result[-1] in left:
        one, other, left, right = other, one, right, left
    sums = _summed(left, right, result)
    if sums is None or result[-2] in right or result[-1] in left:
        return None
    batch, row, column = result[:-2], result[-2], result[-1]
    return (
        Operand(node=one, order=_order(left, batch + row + sums)),
        Operand(node=other, order=_order(right, batch + sums + column)),
    )


def weighted_of(node: Any) -> Iterator[tuple[Node, Operand, Order]]:
    """Yield weights, what they weigh, and the order of the result, from that of ``matmul`` of both.

    Twice where either operand may be the weights; not at all where none is, or where it is no
    product of two tensors.
    """
    given = _operands(node)
    if given is None:
        return
    one, other, spelt = given
    if spelt is None:
        yield one, Operand(node=other, order=None), None
        return
    left, right, result = spelt
    sums = _summed(left, right, result)
    for weights, others, x, y in ((one, other, left, right), (other, one, right, left)):
        if sums is None or x[-1] != sums or len(x) < _PAIR or x[-2] in y:
            continue
        batch, row = x[:-2], x[-2]
        column = next(z for z in y if z not in x)
        value = Operand(node=others, order=_order(y, batch + sums + column))
        yield weights, value, _order(batch + row + column, result)


def _operands(node: Any) -> tuple[Node, Node, tuple[str, str, str] | None] | None:
    if not is_product(node) or node.kwargs:
        return None
    spelt, args = None, node.args
    if node.target is torch.einsum:
        equation, *args = node.args
        args = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        spelt = _spelt(equation)
        if spelt is None:
            return None
    if len(args) != _PAIR or not all(isinstance(x, Node) for x in args):
        return None
    return args[0], args[1], spelt


def _spelt(equation: Any) -> tuple[str, str, str] | None:
    """Read an equation of two tensors, of letters that each tensor has once."""
    if not isinstance(equation, str):
        return None
    given, arrow, result = equation.replace(" ", "").partition("->")
    left, comma, right = given.partition(",")
    terms = (left, right, result)
    if not arrow or not comma or not all(x.isalpha() and len(set(x)) == len(x) for x in terms):
        return None
    return terms


def _summed(left: str, right: str, result: str) -> str | None:
    """Return the letter that is summed over; None if it is not one, or more are alone on a side."""
    sums = [x for x in left if x in right and x not in result]
    rows, columns = ([x for x in a if x not in b] for a, b in ((left, right), (right, left)))
    known = set(left) | set(right)
    if len(sums) != 1 or len(rows) != 1 or len(columns) != 1 or set(result) | set(sums) != known:
        return None
    return sums[0]


def _order(given: str, wanted: str) -> Order:
    return None if given == wanted else tuple(given.index(x) for x in wanted)
