"""Cross entropy in Dynamo's graphs: what it is asked for, and what is done to logits before it."""

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import NotApplicable
from backbay_optimizer.kernels import conditions

LOSSES = (F.cross_entropy,)
MATRIX = 2
_CASTS = ("float", "to", "type")
_QUOTIENTS = (operator.truediv, torch.div, torch.true_divide, "div", "true_divide")
_FACTORS = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
_PARAMETERS = (
    *("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"),
    "label_smoothing",
)
_IGNORED = -100
_SCALES = (1e-4, 1e4)
"""Factors that are taken in."""


class Loss(NamedTuple):
    """What a cross entropy is asked for."""

    target: Node
    """An index for each row."""
    ignored: int
    """The target of rows that don't count."""
    reduction: str


def loss_of(node: Node) -> Loss:
    """Return what a cross entropy, or a likelihood of logarithms, is asked for.

    Raises:
        NotApplicable: it is not that of rows of a matrix and an index for each, as plainly as that.
    """
    given = bound(node, _PARAMETERS)
    target, ignored = given["target"], given.get("ignore_index", _IGNORED)
    reduction = given.get("reduction", "mean")
    if any(given.get(x) is not None for x in ("weight", "size_average", "reduce")):
        raise NotApplicable("classes have weights, or its reduction is spelled as of old")
    if given.get("label_smoothing", 0.0):
        raise NotApplicable("its labels are smoothed")
    if value_of(first_input(node)).dim() != MATRIX:
        raise NotApplicable("it is not of rows of a matrix")
    if not is_ordinary(value_of(target)) or value_of(target).dtype != torch.int64:
        raise NotApplicable("its targets are not indices")
    if type(ignored) is not int or reduction not in {"mean", "sum", "none"}:
        raise NotApplicable("what it leaves out or how it is reduced is not known")
    return Loss(target, ignored, reduction)


def taken_in(node: Node) -> tuple[Node | None, float]:
    """Return what a cast from 16 bits or a positive factor is of, with the factor.

    None where a node is neither.
    """
    value = value_of(node)
    if is_call(node, _CASTS) and value.dtype == torch.float32:
        source = first_input(node)
        if not isinstance(source, Node) or value_of(source).device != value.device:
            return _NEITHER
        return (source, 1.0) if value_of(source).dtype in conditions.DTYPES else _NEITHER
    if not is_call(node, (*_QUOTIENTS, *_FACTORS)) or node.kwargs:
        return _NEITHER
    operands: Any = node.args
    one, other = operands
    if is_call(node, _FACTORS) and not isinstance(one, Node):
        one, other = other, one
    if type(other) not in {int, float} or not _SCALES[0] <= other <= _SCALES[1]:
        return _NEITHER
    if not isinstance(one, Node) or value_of(one).dtype != value.dtype:
        return _NEITHER
    return one, 1 / other if is_call(node, _QUOTIENTS) else float(other)


_NEITHER: tuple[None, float] = (None, 1.0)
