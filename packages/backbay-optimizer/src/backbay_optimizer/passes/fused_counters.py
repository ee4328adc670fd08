"""Count all of a model's counters at once, on CUDA.

::

    before:  first.add_(1); ...; second.add_(1)
    after:   torch._foreach_add_([first, second], 1)

Each batch norm of a model in training counts its batches. Inductor makes a kernel of each count, of
which a GPU does little but begin and end: a ResNet-50 has 53. It makes one of a foreach operator.

A counter is an integer that the graph is given, adds a number to, and does nothing else with. All
that have the same device, dtype and number are one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from backbay.graph.rewrite import call_before
from backbay.graph.values import is_ordinary, storages, value_of
from backbay.kit.passes import Pass, PassContext, Requires

_ADD = "add_"


@dataclass(frozen=True, kw_only=True)
class FusedCounters(Pass):
    """Count what batch norms count in one foreach operator."""

    summary = "on CUDA, batch norms' counters of a model are counted by one kernel"
    requires = Requires(devices=("cuda",), because="a CPU adds a number in no time")

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Put one operator in the place of each group; return how many counts were merged."""
        groups: dict[tuple[object, ...], list[Node]] = {}
        for node in _counts(graph_module.graph):
            with context.attempt(node):
                self.requires.check(value_of(node))
                value = value_of(node)
                groups.setdefault((value.device, value.dtype, node.args[1]), []).append(node)
        count = 0
        for group in (x for x in groups.values() if len(x) > 1):
            with context.attempt(group[0]):
                context.check_profitable(group)
                count += _merged(group)
        if count:
            graph_module.recompile()
        return count


fused_counters = FusedCounters()


def _counts(graph: Graph) -> Iterator[Node]:
    """Yield additions to counters whose memory nothing else of the graph has."""
    shared = Counter(x for y in graph.find_nodes(op="placeholder") for x in storages(y) or ())
    for node in graph.find_nodes(op="call_method", target=_ADD):
        if len(node.args) != len(("self", "other")) or node.kwargs or node.users:
            continue
        counter, step = node.args
        if not isinstance(counter, Node) or counter.op != "placeholder" or len(counter.users) > 1:
            continue
        value = value_of(counter)
        if type(step) is not int or not _is_a_number(value):
            continue
        if all(shared[x] == 1 for x in storages(counter) or ()):
            yield node


def _is_a_number(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and is_ordinary(value)
        and not value.dim()
        and not value.dtype.is_floating_point
        and not value.dtype.is_complex
        and value.dtype != torch.bool
    )


def _merged(group: list[Node]) -> int:
    """Put one operator in the place of the last of some counts; return how many there were."""
    counters = [x.args[0] for x in group]
    call_before(group[-1], torch._foreach_add_, counters, group[-1].args[1])
    for node in group:
        node.graph.erase_node(node)
    return len(group)
