"""What is in memory, whoever computes it: because of what reads it, or of what gives it."""

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.match import first_input, is_call
from backbay.graph.values import are_numbers, storages
from backbay_optimizer.passes import convolutions

_VIEWS = ("view", "reshape", "permute", "flatten", torch.permute, torch.flatten)
_FLOAT8 = tuple(
    getattr(of, name) for of, name in ((torch, "_scaled_mm"), (F, "scaled_mm")) if hasattr(of, name)
)
"""Products of float8; torch 2.11 has the first."""
_READERS = (
    *(F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul"),
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.scaled_dot_product_attention),
    *_FLOAT8,
)
"""What reads from memory, and Inductor fuses nothing into."""
_PRODUCTS = (
    *(F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul", "mm"),
    *convolutions.IMAGES,
    *_FLOAT8,
)


def is_read_from_memory(node: Node) -> bool:
    """Return whether some reader, of the node or of a view, takes what it reads from memory."""
    for user in node.users:
        if user.op == "output" or user.target in _READERS or _is_ours(user):
            return True
        is_idle = effects.is_dropout(user) and not effects.drops(user)
        if (is_idle or is_call(user, _VIEWS)) and is_read_from_memory(user):
            return True
    return False


def is_of_ours(node: Node) -> bool:
    """Return whether a node is one of the results of an operator of Backbay's."""
    return node.target is operator.getitem and _is_ours(node.all_input_nodes[0])


def _is_ours(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace == "backbay"


def memory_of(node: Any) -> Node | None:
    """Return what a node views, if that is in memory whoever reads it.

    On CUDA that holds for a convolution without its bias: Inductor adds that where it is read.
    """
    while isinstance(node, Node) and node.op.startswith("call"):
        if is_call(node, _PRODUCTS):
            return node
        before = first_input(node)
        if not isinstance(before, Node) or not storages(node) or storages(node) != storages(before):
            return None
        node = before
    return node if isinstance(node, Node) and node.op in {"placeholder", "get_attr"} else None


def are_rows(x: torch.Tensor) -> bool:
    """Return whether a tensor is a matrix of rows, in order, each without gaps."""
    *outer, stride, one = (1, *x.stride()) if x.dim() == 1 else x.stride()
    if not are_numbers([stride, one]) or one != 1:
        return False
    wanted: list[Any] = [stride]
    for n in reversed(x.shape[1:-1]):
        wanted.insert(0, n * wanted[0])
    # As text: comparing symbols would guard on the answer.
    return [str(n) for n in wanted[:-1]] == [str(n) for n in outer]
