"""Which nodes share memory: seen from the storages of their fake values, views included.

And which inputs of Dynamo's graph are parameters and buffers of the model, and are only read; and
whether what is read at one place of a graph may as well be read at another one.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from backbay.graph.checkpoints import as_run
from backbay.graph.effects import changes_state, may_write, mutates, written
from backbay.graph.values import are_numbers, is_submodule, storages, value_of

Storages = frozenset[int]


class Memory:
    """What a graph, with its checkpoints, does to memory that more than one node can see."""

    def __init__(self, graph: Graph, *, besides: Collection[Node] = ()) -> None:
        """Look at a graph.

        Args:
            graph: the graph.
            besides: nodes whose writes do not count.
        """
        writers = [x for x in as_run(graph) if may_write(x) and x not in besides]
        # What only leaves autocast, or another state, writes to nothing.
        writers = [x for x in writers if mutates(x) or not changes_state(x)]
        self.writes = bool(writers)
        """Whether anything may be written, by whatever counts."""
        targets = [x for writer in writers for x in written(writer)]
        self._mutated = _union(targets)
        self._reaching = frozenset().union(*(storages(x) or () for x in targets))
        output = next(x for x in reversed(graph.nodes) if x.op == "output")
        self._returned = _union(output.all_input_nodes)

    def mutated(self, node: Any) -> bool:
        """Return whether the memory of a node is written somewhere; what is not known, may be."""
        return _meets(storages(node), self._mutated)

    def reaches_a_writer(self, node: Any) -> bool:
        """Return whether a node's memory, or a view of it, is given to what may write to it.

        Unlike `mutated`, a write to memory that is not known, as within a vmap, does not count.
        """
        return not self._reaching.isdisjoint(storages(node) or ())

    def returned(self, node: Any) -> bool:
        """Return whether the caller gets the memory of a node, or of a view of it."""
        return _meets(storages(node), self._returned)

    def merge(self, node: Any, first: Any) -> None:
        """Note that one node's memory is from now on another's."""
        if self.returned(node):
            self._returned = _joined(self._returned, storages(first))
        if self.mutated(node):
            self._mutated = _joined(self._mutated, storages(first))


def _joined(some: Storages | None, others: Storages | None) -> Storages | None:
    return None if some is None or others is None else some | others


def _union(nodes: Iterable[Node]) -> Storages | None:
    # A submodule has no memory that others see.
    found = [storages(x) for x in nodes if not is_submodule(x)]
    known = [x for x in found if x is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def _meets(some: Storages | None, others: Storages | None) -> bool:
    if frozenset() in (some, others):
        return False
    return some is None or others is None or not some.isdisjoint(others)


def views(node: Node) -> set[Node] | None:
    """Return a node and what shares its memory; None where that is not known."""
    own, found, waiting = storages(node), {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            theirs = storages(user)
            if own is None or theirs is None:
                return None
            if user not in found and not own.isdisjoint(theirs):
                found.add(user)
                waiting.append(user)
    return found


def writes_what_it_holds(graph_module: GraphModule) -> bool:
    """Return whether a graph may write tensors that are its own attributes.

    Dynamo has parameters and states of an optimizer there, and not among the inputs, when its step
    is compiled: called for a trial, even on copies of its inputs, the graph would train.
    """
    return any(_writes_its_own(x) for x in graph_module.modules() if isinstance(x, GraphModule))


def _writes_its_own(graph_module: GraphModule) -> bool:
    graph = graph_module.graph
    called = [graph_module.get_submodule(str(x.target)) for x in graph.find_nodes(op="call_module")]
    if any(list(x.buffers()) for x in called):
        return True
    memory, held = Memory(graph), graph.find_nodes(op="get_attr")
    return any(memory.mutated(x) for x in held if not is_submodule(x))


def returned_views(graph: Graph) -> set[Node]:
    """Return what makes the views that a graph returns of an input, or of another of its results.

    Their memory is seen to be shared, and AOTAutograd asks a view of an input whose sizes are
    symbols where it begins: who computes them elsewhere returns copies.
    """
    (output,) = graph.find_nodes(op="output")
    inputs = {x for node in graph.find_nodes(op="placeholder") for x in storages(node) or ()}
    returned = Counter(x for node in output.all_input_nodes for x in storages(node) or ())
    shared = inputs | {x for x, times in returned.items() if times > 1}
    found, waiting = set[Node](), list(output.all_input_nodes)
    while waiting:
        node = waiting.pop()
        own = storages(node) or frozenset()
        viewed = [x for x in node.all_input_nodes if own & (storages(x) or frozenset())]
        if node.op == "call_function" and node not in found and own & shared and viewed:
            found.add(node)
            waiting += viewed
    return found


def is_parameter(node: Node, memory: Memory) -> bool:
    """Return whether a node is a parameter or buffer that the graph does not write.

    A plain tensor, that is, whose sizes are numbers: no distributed one, no other subclass.
    """
    # Dynamo's own mark: torch has no public one for what it holds constant from call to call.
    marks = node.meta.get("tensor_dict") or {}
    if node.op != "placeholder" or not marks.get("_dynamo_static_input_type"):
        return False
    return is_plain(value_of(node)) and not memory.mutated(node) and storages(node) is not None


def is_plain(value: object) -> bool:
    """Whether a fake value is a tensor with memory of its own kind, in sizes known by now."""
    if type(value) is not FakeTensor or value.layout != torch.strided:
        return False
    return are_numbers((*value.shape, *value.stride(), value.storage_offset()))


def disturbed(
    start: Node, end: Node, read: Iterable[Node], *, inside: Collection[Node] = ()
) -> str | None:
    """Return what stands between two places and forbids to read at the other, or None.

    Args:
        start: the earlier place.
        end: the later one.
        read: the values.
        inside: nodes between the two that do not count.
    """
    return Disturbances(start, inside=inside).until(end, read)


class Disturbances:
    """What stands behind a place, looked at once however often it is asked for."""

    def __init__(self, start: Node, *, inside: Collection[Node] = ()) -> None:
        """Begin behind a node.

        Args:
            start: the node.
            inside: nodes that do not count.
        """
        self._looked_at = start
        self._inside = inside
        self._mode: str | None = None
        self._writes: list[tuple[Node, list[frozenset[int] | None]]] = []

    def until(self, end: Node, read: Iterable[Node]) -> str | None:
        """Return what forbids to read values at ``end`` instead of the beginning, or vice versa.

        Args:
            end: a place behind the beginning; what was asked for further behind counts, too.
            read: the values.
        """
        self._look(end)
        if self._mode is not None:
            return self._mode
        known = [storages(x) for x in read]
        for node, touched in self._writes:
            if any(x is None or y is None or x & y for x in known for y in touched):
                return f"{node.name} may write on the way what it reads"
        return None

    def _look(self, end: Node) -> None:
        while self._looked_at < end.prev:
            self._looked_at = node = self._looked_at.next
            if node in self._inside:
                continue
            if changes_state(node) and self._mode is None:
                self._mode = f"{node.name} changes a mode on the way"
            if may_write(node):
                self._writes.append((node, [storages(x) for x in node.all_input_nodes]))
