"""What the faults of memory know of a graph: what writes, what draws, what shares memory."""

from typing import Any

import torch

_WRITERS = {"setitem", "iadd", "isub", "imul", "itruediv"}


def writes_to(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return what a node of Dynamo's graph writes to, if anything."""
    name = str(getattr(node.target, "__name__", node.target))
    in_place = name.endswith("_") and not name.endswith("__")
    if not node.op.startswith("call_") or not (in_place or name in _WRITERS):
        return None
    first = node.args[0] if node.args else None
    return first if isinstance(first, torch.fx.Node) else None


def draws(node: torch.fx.Node) -> bool:
    """Whether a node of AOTAutograd's graph draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def same_call(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return what two nodes that compute the same have in common."""
    return node.op, node.target, repr(node.args), repr(node.kwargs)


def follows(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return a node with everything computed from it."""
    found, todo = {node}, [node]
    while todo:
        for user in todo.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                todo.append(user)
    return found
