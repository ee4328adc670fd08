"""The products of attention, however they are written: ``matmul``, ``@``, ``bmm``, ``einsum``."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

PRODUCTS = (torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__", torch.einsum)
Order = tuple[int, ...] | None
"""How dimensions are exchanged, as ``permute`` takes it; None where they are as they should be."""

_PAIR = 2


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What a product reads."""

    node: Node
    order: Order
    """Of its dimensions, to be what ``matmul`` takes."""


def is_product(node: Any) -> bool:
    """Tell whether a node calls a product."""
    return isinstance(node, Node) and node.op.startswith("call") and node.target in PRODUCTS


def scores_of(node: Any) -> tuple[Operand, Operand] | None:
    """Give the operands of a product whose result is ``matmul``'s of them.

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
    """Give weights, what they weigh, and the order of the result, from that of ``matmul`` of both.

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
    """Give the letter that is summed over; None if it is not one, or more are alone on a side."""
    sums = [x for x in left if x in right and x not in result]
    rows, columns = ([x for x in a if x not in b] for a, b in ((left, right), (right, left)))
    known = set(left) | set(right)
    if len(sums) != 1 or len(rows) != 1 or len(columns) != 1 or set(result) | set(sums) != known:
        return None
    return sums[0]


def _order(given: str, wanted: str) -> Order:
    return None if given == wanted else tuple(given.index(x) for x in wanted)
