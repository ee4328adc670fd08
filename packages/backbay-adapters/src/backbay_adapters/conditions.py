"""Conditions on which engines refuse an operator, for `Engine.refuses`: each takes its node."""

from typing import Any

from torch.fx import Node


def may_take_off(pad: Node) -> bool:
    """Whether an `aten.constant_pad_nd` makes its input smaller, or may: a size may be negative."""
    sizes: Any = pad.args[1]
    return any(isinstance(x, Node) or x < 0 for x in sizes)


def may_lose_a_sign(power: Node) -> bool:
    """Whether the exponent of an `aten.pow` is a tensor, unknown, or negative."""
    exponent = power.args[1]
    return not isinstance(exponent, (int, float)) or exponent < 0


def gathers_some(gather: Node) -> bool:
    """Whether an `aten.gather` leaves elements of its other dimensions out."""
    arguments: Any = gather.args
    source, dim, index = arguments
    read, made = (list(x.meta["val"].shape) for x in (source, index))
    return read[:dim] + read[dim:][1:] != made[:dim] + made[dim:][1:]


def corrects_by_more(variance: Node) -> bool:
    """Whether an `aten.var` or `aten.var_mean` is corrected by another number than 0 or 1."""
    return variance.kwargs["correction"] not in {0, 1}


def has_gaps(put: Node) -> bool:
    """Whether an `aten.index_put` has a dimension without an index."""
    indices: Any = put.args[1]
    return None in indices or len(indices) != put.meta["val"].ndim


def is_interrupted(index: Node) -> bool:
    """Whether an `aten.index` has a dimension without an index between two that have one."""
    indices: Any = index.args[1]
    places = [n for n, x in enumerate(indices) if x is not None]
    return places != list(range(places[0], places[-1] + 1))
