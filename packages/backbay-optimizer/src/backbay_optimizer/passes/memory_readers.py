"""Whether what a node gives is written to memory, whoever computes it, because of what reads it."""

import operator

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.match import is_call

_VIEWS = ("view", "reshape", "permute", "flatten", torch.permute, torch.flatten)
_READERS = (
    *(F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul"),
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.scaled_dot_product_attention),
)
"""What reads from memory, and Inductor fuses nothing into."""


def is_read_from_memory(node: Node) -> bool:
    """Return whether some reader, of the node or of a view, takes what it reads from memory."""
    for user in node.users:
        if user.op == "output" or user.target in _READERS:
            return True
        if isinstance(user.target, OpOverload) and user.target.namespace == "backbay":
            return True
        is_idle = effects.is_dropout(user) and not effects.drops(user)
        if (is_idle or is_call(user, _VIEWS)) and is_read_from_memory(user):
            return True
    return False
