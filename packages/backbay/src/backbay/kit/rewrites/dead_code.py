"""Remove dead nodes.

::

    before:  a = x + 1; b = a * 2; y = x.sigmoid(); x.add_(1); return y
    after:   y = x.sigmoid(); x.add_(1); return y

What does something beside giving a value stays: what writes a tensor (also through a view), draws
random numbers (the generator must move on), asserts, or changes autocast, gradient or other modes;
so do custom and higher-order operators, of which nobody knows. Placeholders stay.
"""

from torch.fx import GraphModule

from backbay.graph.rewrite import erase_dead
from backbay.kit.passes import graph_pass


@graph_pass()
def remove_dead_code(graph_module: GraphModule) -> int:
    """Remove nodes without users that do nothing else; works at every level."""
    count = erase_dead(graph_module.graph)
    if count:
        graph_module.recompile()
    return count
