"""Integers in an engine: it may look elements up by them, and has to say so if it computes them.

Engines compute with integers in their own ways: with 32 bits, through floats, or with division that
rounds towards zero. Each such result is wrong only for some values, which small trials don't meet.
"""

import operator

import torch
from torch.fx import Node

from backbay.graph.values import tensors_in, value_of

_aten = torch.ops.aten
_BY_INDEX = frozenset(
    {
        _aten._unsafe_index,  # noqa: SLF001 (its name, as below)
        _aten._unsafe_index_put,  # noqa: SLF001
        _aten.embedding,
        _aten.embedding_dense_backward,
        _aten.gather,
        _aten.index,
        _aten.index_add,
        _aten.index_put,
        _aten.index_select,
        _aten.max_pool2d_with_indices_backward,
        _aten.max_pool3d_with_indices_backward,
        _aten.nll_loss_backward,
        _aten.nll_loss_forward,
        _aten.scatter,
        _aten.scatter_add,
        _aten.scatter_reduce,
    }
)
_FINDING = frozenset({_aten.argmax, _aten.argmin})


def computes_integers(node: Node) -> bool:
    """Whether a node calculates with integers, beyond finding elements or looking them up."""
    if node.target is operator.getitem:  # as what it is taken out of
        return False
    packet = getattr(node.target, "overloadpacket", None)
    read = [x for source in node.all_input_nodes for x in tensors_in(value_of(source))]
    if packet not in _BY_INDEX and any(map(_is_integer, read)):
        return True
    made = tensors_in(value_of(node))
    return packet not in _FINDING and bool(made) and all(map(_is_integer, made))


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool
