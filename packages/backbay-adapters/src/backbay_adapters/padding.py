"""What several engines' padding can't do."""

from typing import Any

from torch.fx import Node


def may_take_off(node: Node) -> bool:
    """Whether an `aten.constant_pad_nd` makes its input smaller, or may: a size may be negative."""
    sizes: Any = node.args[1]
    return any(isinstance(x, Node) or x < 0 for x in sizes)
