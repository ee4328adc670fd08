"""Constants that one graph hands to the next, where a model's graph is cut apart.

DistributedDataParallel has Dynamo's graph cut into one for each bucket of gradients, and each
compiled by itself, in the order in which they run. What the first one makes is an input of the
others, with the same fake value: so it is known again. How it is made is kept as long as that.
"""

from collections.abc import MutableMapping

from torch import Tensor
from torch.fx import Graph
from torch.utils.weak import WeakTensorKeyDictionary

from backbay.graph.aliases import Memory
from backbay.graph.values import value_of

_MADE: MutableMapping[Tensor, Graph] = WeakTensorKeyDictionary()
"""A fake value, to a graph without inputs that gives the real one; it holds no fake values."""


def hand_over(value: Tensor, made: Graph) -> None:
    """Note how a value is made that another graph may get."""
    _MADE[value] = made


def how_made(node: object) -> Graph | None:
    """Give how a graph's input was made by another graph, if that is known and still true."""
    value = value_of(node)
    return _MADE.get(value) if isinstance(value, Tensor) else None


def forget_written(graph: Graph) -> None:
    """Forget what a graph writes to: those after it get something else."""
    memory = Memory(graph) if _MADE else None
    for value in list(_MADE):
        if memory is not None and memory.mutated(value):
            del _MADE[value]
