"""Convolutions' weights with the batch norms behind them folded in, as few calls for a whole graph.

::

    after:   folded = torch.ops.backbay.folded_batch_norms([w1, w2], ..., [scale1, scale2], ...)
             w1, w2, b1, b2 = folded[0], folded[1], folded[2], folded[3]

A call stands where the first of its convolutions does, and holds others of the same kind whose
parameters are there by then, and are not written in between.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from backbay.graph.aliases import Disturbances
from backbay.graph.rewrite import put_before
from backbay.graph.values import computed, value_of
from backbay_optimizer.kernels import folded_batch_norm as kernel
from backbay_optimizer.passes.convolutions import Convolution

MOST = 16
"""Convolutions of one call. Inductor makes two kernels of them, with a branch for each, and Triton
takes longer by more than there are branches (``benchmarks/branches.py``): with 24, compilation of a
ResNet-50 waited for one kernel twice as long (``benchmarks/launches.py``)."""

Folded = tuple[Node, Node]
"""A weight and a bias."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A batch norm of running statistics, behind a convolution."""

    convolution: Convolution
    running_mean: Node
    running_var: Node
    weight: Node | None
    bias: Node | None
    eps: float
    dtype: torch.dtype
    """Of the convolution."""
    place: Node
    """Before this, weight and bias are needed."""

    @property
    def reads(self) -> tuple[Node | None, ...]:
        """What it is made of."""
        found = self.convolution
        own = self.running_mean, self.running_var, self.weight, self.bias
        return found.weight, found.bias, *own

    @property
    def kind(self) -> tuple[Any, ...]:
        """What all of one call have in common."""
        absent = tuple(x is None for x in self.reads)
        return self.dtype, value_of(self.running_mean).device, self.eps, absent


class _Group:
    """Batch norms that are folded by one call."""

    def __init__(self, first: Norm) -> None:
        self.norms = [first]
        self.place = first.place
        self._between = Disturbances(first.place)

    def is_fit(self, norm: Norm) -> bool:
        """Return whether there is room for a norm, and what it reads is the same here."""
        read, start = [x for x in norm.reads if x is not None], norm.convolution.node
        if (
            len(self.norms) == MOST
            or norm.kind != self.norms[0].kind
            or not all(x < self.place for x in read)
        ):
            return False
        return start < self.place or self._between.until(start, read) is None


def put_folded(norms: Sequence[Norm]) -> list[Folded]:
    """Fold batch norms in a graph; return the nodes of weight and bias for each.

    Args:
        norms: in the graph's order. Between convolution and place nothing writes what one reads.
    """
    groups: list[_Group] = []
    for norm in norms:
        group = next((x for x in groups if x.is_fit(norm)), None)
        if group is None:
            groups.append(_Group(norm))
        else:
            group.norms.append(norm)
    folded = {norm.place: made for group in groups for norm, made in _put(group)}
    return [folded[norm.place] for norm in norms]


def _put(group: _Group) -> Iterator[tuple[Norm, Folded]]:
    norms, first = group.norms, group.norms[0]
    columns: list[Any] = [
        None if x[0] is None else list(x) for x in zip(*(y.reads for y in norms), strict=True)
    ]
    values = [computed(kernel.weight_like, value_of(x), first.dtype) for x in columns[0]]
    values += [computed(kernel.bias_like, value_of(x), first.dtype) for x in columns[2]]
    call = put_before(first.place, values, kernel.OPERATOR, *columns, first.eps, first.dtype)
    made = [
        put_before(first.place, value, operator.getitem, call, number)
        for number, value in enumerate(values)
    ]
    for number, norm in enumerate(norms):
        yield norm, (made[number], made[len(norms) + number])
