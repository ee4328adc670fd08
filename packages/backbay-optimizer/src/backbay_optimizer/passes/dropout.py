"""Calls of dropout: whether one drops anything."""

from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

_SWITCH = {F.dropout: "training", torch.dropout: "train"}


def is_dropout(node: Any) -> bool:
    """Return whether a node calls dropout."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in _SWITCH


def drops(node: Node) -> bool:
    """Return whether a call of dropout may set anything to zero."""
    switch = _SWITCH[node.target]  # type: ignore[index] # is_dropout has seen it
    given = {**dict(zip(("input", "p", switch), node.args, strict=False)), **node.kwargs}
    return not (given.get(switch, True) is False or given.get("p", 0.5) == 0.0)
