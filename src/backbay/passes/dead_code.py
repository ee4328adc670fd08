"""Nodes whose value nobody uses go.

::

    before:  a = x + 1; b = a * 2; y = x.sigmoid(); x.add_(1); return y
    after:   y = x.sigmoid(); x.add_(1); return y

What does something beside giving a value stays: what writes a tensor (also through a view), draws
random numbers (the generator must move on), asserts, or changes autocast, gradient or other modes;
so do custom and higher-order operators, of which nobody knows. Placeholders stay.
"""

from torch.fx import GraphModule, Node

from backbay.graph.effects import is_pure
from backbay.kit.passes import graph_pass


@graph_pass()
def remove_dead_code(graph_module: GraphModule) -> int:
    """Remove nodes without users that do nothing else; works at every level.

    ::

        before:  a = x + 1; y = x.sigmoid(); return y
        after:   y = x.sigmoid(); return y
    """
    # Not fx's eliminate_dead_code: by itself it takes x.add_(1), F.relu(x, True) and unknown
    # functions for dead. Told what is not, it still enters submodules with its own notion.
    dead = [node for node in reversed(graph_module.graph.nodes) if _erased(node)]
    if dead:
        graph_module.recompile()
    return len(dead)


def _erased(node: Node) -> bool:
    if node.users or not is_pure(node):
        return False
    node.graph.erase_node(node)
    return True
