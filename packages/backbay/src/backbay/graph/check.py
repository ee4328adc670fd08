"""Is a graph still a graph, and the same function, as far as can be seen without running it?

Torch's own ``lint`` asserts half of this, without saying what to do. Here every common mistake of
a pass has its own error, and the error names the pass.
"""

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from backbay.errors import (
    DanglingNode,
    EndlessPass,
    ErasedInUse,
    GradientMismatch,
    MissingOutput,
    ShapeAssumed,
    StaleCode,
    WrongDtype,
)
from backbay.graph.propagation import Call, calls_of, kind, propagate_changes
from backbay.graph.values import value_of

_MOST_GROWTH, _FREE_GROWTH = 20, 1_000


class Freshness:
    """Whether the code of a graph is that of the graph; asked anew only where either has changed.

    Writing a graph out as code takes longer than most passes, and most change nothing. Dynamo's
    graphs are written when they are called; while one waits for that nothing is written here. A
    pass that forgets to call ``recompile`` is found out there, too: it would break any other graph.

    This keeps the graph alive: make one for each run of passes.
    """

    def __init__(self) -> None:
        self.known: Before | None = None
        """What was found of the graph when it was looked at last."""
        self._seen: list[Any] = []
        self._fresh = False
        self._is_announced = False

    def of(self, graph_module: GraphModule) -> bool:
        """Return whether the code of a graph module is that of its graph."""
        seen = _looked_at(graph_module)
        if not _are_same(seen, self._seen):
            self._fresh = self._is_fresh(graph_module, seen)
            self._seen = seen
        self._is_announced = False
        return self._fresh

    def is_as_it_was(self, graph_module: GraphModule) -> bool:
        """Whether graph and code are as they were when they were looked at, and not made anew."""
        return not self._is_announced and _are_same(_looked_at(graph_module), self._seen)

    def _is_fresh(self, graph_module: GraphModule, seen: list[Any]) -> bool:
        if not _is_waiting(graph_module):
            return bool(graph_module.code == graph_module.graph.python_code("self").src)
        # Where it did not wait before, somebody has called recompile.
        if self._is_announced or not self._seen or self._seen[0] is not None:
            return True
        return self._fresh and list(map(repr, seen)) == list(map(repr, self._seen))

    @contextlib.contextmanager
    def listening(self, graph_module: GraphModule) -> Iterator[None]:
        """Notice calls of ``recompile``."""
        make = graph_module.recompile

        def noticed() -> Any:
            self._is_announced = True
            return make()

        graph_module.recompile = noticed  # type: ignore[method-assign] # of this one, until the end
        try:
            yield
        finally:
            del graph_module.recompile


@dataclass(frozen=True, slots=True)
class Before:
    """What a graph promised before a pass: its inputs, and its results' kinds; and its nodes."""

    inputs: tuple[str, ...]
    structure: Any
    results: tuple[Any, ...]
    fresh: bool
    """Whether the code that runs is that of the graph; inside Inductor it is not, and not run."""
    calls: Mapping[Node, Call]

    @classmethod
    def of(cls, graph_module: GraphModule, freshness: Freshness) -> "Before":
        """Look at a graph that is right; once, as long as nothing is done to it."""
        known = freshness.known
        if known is not None and known.holds(graph_module, freshness):
            return known
        graph = graph_module.graph
        output = _output(graph, "the graph")
        leaves, structure = pytree.tree_flatten(output.args)
        inputs = tuple(str(n.target) for n in graph.nodes if n.op == "placeholder")
        fresh = freshness.of(graph_module)
        freshness.known = cls(inputs, structure, _kinds(leaves), fresh, calls_of(graph))
        return freshness.known

    def holds(self, graph_module: GraphModule, freshness: Freshness) -> bool:
        """Whether nothing was done to the graph since it was looked at: most passes do nothing."""
        if not freshness.is_as_it_was(graph_module):
            return False
        values, known = map(value_of, graph_module.graph.nodes), self.calls.values()
        if not all(now is was.value for now, was in zip(values, known, strict=True)):
            return False
        leaves = pytree.tree_leaves(_output(graph_module.graph, "the graph").args)
        return self.results == _kinds(leaves)  # a value may be changed in place


def check(
    graph_module: GraphModule,
    before: Before,
    who: str,
    freshness: Freshness,
) -> None:
    """Check a graph after a pass.

    Args:
        graph_module: what the pass left.
        before: what was there before it.
        who: the pass, for the error.
        freshness: what looked at the graph before.

    Raises:
        GraphBroken: the graph is not right; the subclass says in which way.
    """
    if before.holds(graph_module, freshness):
        return
    graph = graph_module.graph
    output = _output(graph, who)
    _check_order(graph, who)
    propagate_changes(graph_module, before.calls, who)
    now = Before.of(graph_module, freshness)
    if now.inputs != before.inputs:
        raise MissingOutput(
            f"{who} changed the graph's inputs from {before.inputs} to {now.inputs}: whoever calls "
            "it passes the old ones. Leave placeholders as they are, also unused ones"
        )
    if now.structure != before.structure:
        raise MissingOutput(
            f"{who} changed what the graph returns, from {before.structure} to {now.structure}: "
            f"the output node is {output.format_node()}"
        )
    for position, (was, is_now) in enumerate(zip(before.results, now.results, strict=True)):
        check_kind(position, was, is_now, who)
    if before.fresh and not now.fresh:
        raise StaleCode(
            f"{who} changed the graph and not the code that runs: call graph_module.recompile()"
        )


@contextlib.contextmanager
def watched(graph_module: GraphModule, who: str) -> Iterator[None]:
    """Watch a pass while it runs: end one that adds nodes for ever, and name what it did wrong.

    Raises:
        EndlessPass: it went on adding nodes.
        ErasedInUse: it erased a node that others use.
    """
    graph = graph_module.graph
    limit = _MOST_GROWTH * len(graph.nodes) + _FREE_GROWTH
    make = graph.create_node

    def counted(*arguments: Any, **keywords: Any) -> Node:
        if len(graph.nodes) > limit:
            raise EndlessPass(
                f"{who} has made the graph grow from {limit - _FREE_GROWTH} to over {limit} nodes: "
                "it adds nodes to the graph that it walks over. Walk over list(graph.nodes)"
            )
        return make(*arguments, **keywords)

    graph.create_node = counted  # type: ignore[method-assign] # of this one graph, until the end
    try:
        yield
    except RuntimeError as error:
        if "Tried to erase Node" in str(error):
            said = str(error).splitlines()[0]
            raise ErasedInUse(
                f"{who}: {said}. Give its users another node first: node.replace_all_uses_with(new)"
            ) from error
        raise
    finally:
        del graph.create_node


def _kinds(results: Sequence[Any]) -> tuple[Any, ...]:
    values = map(value_of, results)
    return tuple(kind(x) if isinstance(x, torch.Tensor) else None for x in values)


def _output(graph: Graph, who: str) -> Node:
    outputs: list[Node] = [n for n in graph.nodes if n.op == "output"]
    if len(outputs) != 1:
        raise MissingOutput(f"{who} left {len(outputs)} output nodes, where a graph has one")
    return outputs[0]


def _check_order(graph: Graph, who: str) -> None:
    seen = set[Node]()
    for node in graph.nodes:
        for used in node.all_input_nodes:
            if used not in seen:
                lost = used.graph is not graph or used._erased  # noqa: SLF001 (nothing else tells)
                how = "is not in the graph" if lost else "comes only after it"
                raise DanglingNode(
                    f"{who}: {node.format_node()} uses {used.name}, which {how}. Insert a node "
                    "before its first user (graph.inserting_before); replace uses of an erased one"
                )
        seen.add(node)


def check_kind(position: int, was: Any, is_now: Any, who: str) -> None:
    """Check what a result is, as far as both are known: what `propagation.kind` gives.

    Raises:
        WrongDtype: it has another dtype, or is on another device.
        ShapeAssumed: it has another shape.
        GradientMismatch: it has no gradient any more.
    """
    if was is None or is_now is None:
        return
    if was[:2] != is_now[:2]:
        raise WrongDtype(
            f"{who}: result {position} is {is_now[0]} on {is_now[1]}, and was {was[0]} on {was[1]}"
        )
    shapes = [", ".join(map(str, x[2])) for x in (was, is_now)]
    if shapes[0] != shapes[1]:
        raise ShapeAssumed(
            f"{who}: result {position} has shape ({shapes[1]}), and had ({shapes[0]}). A size of a "
            "dynamic shape is a symbol: take it from the tensor, x.shape[0], not from an example"
        )
    if was[3] and not is_now[3]:
        raise GradientMismatch(
            f"{who}: result {position} needs a gradient, and what the pass put in gives it none: "
            "look for detach(), .data, no_grad, and for an operator without a gradient "
            "(torch.library.register_autograd gives it one)"
        )


def _looked_at(graph_module: GraphModule) -> list[Any]:
    """Return the objects that a graph and its code are made of; a node's arguments never change."""
    code = None if _is_waiting(graph_module) else graph_module.code
    seen = [code, graph_module.graph]
    for node in graph_module.graph.nodes:
        seen += (node, node.name, node.op, node.target, node.args, node.kwargs)
    return seen


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _is_waiting(graph_module: GraphModule) -> bool:
    """Return whether a graph's code is made only when somebody calls it or asks for it."""
    return isinstance(graph_module, _LazyGraphModule) and graph_module._needs_recompile()  # noqa: SLF001 (no other)
