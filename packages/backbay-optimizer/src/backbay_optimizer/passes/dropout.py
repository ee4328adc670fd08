"""Calls of dropout: whether one drops anything."""

from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import is_call
from backbay.graph.rewrite import bound

_SWITCH = {F.dropout: "training", torch.dropout: "train"}


def is_dropout(node: Any) -> bool:
    """Return whether a node calls dropout."""
    return is_call(node, _SWITCH)


def drops(node: Node) -> bool:
    """Return whether a call of dropout may set anything to zero."""
    switch = _SWITCH[node.target]  # type: ignore[index] # is_dropout has seen it
    given = bound(node, ("input", "p", switch))
    return not (given.get(switch, True) is False or given.get("p", 0.5) == 0.0)
