"""Patterns on functional ATen graphs, by Inductor's own pattern matcher.

The same pattern, a plain function, is traced to ATen operators, decomposed as the graph is. The
matcher compares operands in order, so each order of commutative ones is registered. What it finds
it traces again with the shapes, dtypes and device of the graph.

All that Backbay uses of ``torch._inductor.pattern_matcher`` is here.
"""

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.errors import InputError
from backbay.graph.match import MOST_ORDERS, Match, Nearest, NearMiss, Pattern
from backbay.graph.rewrite import Rewritten
from backbay.graph.values import provenance

_COMMUTATIVE = frozenset({torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor})
_now: ContextVar["_Now"] = ContextVar("_now")


@dataclass(slots=True)
class _Now:
    """What one application of a pattern knows; the matcher itself is shared."""

    near: list[NearMiss]
    place: Node | None = None
    """The result of the last match that holds."""


def apply_aten(
    pattern: Pattern,
    graph_module: GraphModule,
    decompositions: Mapping[Any, Any],
    *,
    nearest: Nearest | None = None,
) -> Rewritten:
    """Replace every match of a pattern in a functional ATen graph.

    Args:
        pattern: what to find; it must have example inputs. Numbers must be those of the pattern.
        graph_module: changed in place, and recompiled where it was.
        decompositions: those that made the graph; the replacement is decomposed likewise.
        nearest: as in `match.find`.

    Raises:
        InputError: the pattern has no example inputs, or can't be traced with them.
    """
    done = Rewritten()
    matcher = _Matcher.of(pattern, decompositions)
    graph = graph_module.graph
    differing = list(nearest(matcher.graph, graph, is_tolerant=False)) if nearest else []
    token = _now.set(_Now(done.near))
    try:
        done.count = matcher.matcher.apply(graph_module)
    finally:
        _now.reset(token)
    left = {*graph.nodes}
    done.near += (NearMiss.at(x, pattern.title, why) for x, why in differing if x in left)
    if done.count:
        graph_module.recompile()
    return done


class _Matcher:
    """Inductor's matcher of one pattern; making it takes a trace for each order of operands."""

    def __init__(self, pattern: Pattern, decompositions: Mapping[Any, Any]) -> None:
        from torch._inductor.pattern_matcher import (  # noqa: PLC0415 (Inductor takes seconds)
            PatternMatcherPass,
            register_replacement,
        )

        self._pattern, self._decompositions = pattern, decompositions
        self.matcher = PatternMatcherPass(pass_name=pattern.title)
        # Compiling is what we are called from: none of its state may leak into the pattern.
        with torch._guards.tracing(None), unset_fake_temporarily(), FakeTensorMode():  # noqa: SLF001
            inputs = _example(pattern)
            traced = self._traced(pattern.match, inputs)
            self.graph = traced.graph
            count = len(_swappable(traced))
            for order in _orders(count, pattern):
                register_replacement(
                    pattern.match,
                    pattern.replacement,
                    inputs,
                    functools.partial(self._trace, order),
                    self.matcher,
                    extra_check=self._holds,
                    skip_duplicates=True,
                )

    @staticmethod
    @functools.lru_cache(maxsize=512)
    def _cached(pattern: Pattern, table: "_Table") -> "_Matcher":
        return _Matcher(pattern, table.decompositions)

    @classmethod
    def of(cls, pattern: Pattern, decompositions: Mapping[Any, Any]) -> "_Matcher":
        """Return the matcher of a pattern, made once for each table of decompositions."""
        return cls._cached(pattern, _Table(decompositions))

    def _traced(self, function: Any, inputs: Sequence[Any]) -> GraphModule:
        graph_module = make_fx(function, dict(self._decompositions))(*inputs)
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
        return graph_module

    def _trace(
        self, order: Sequence[bool], function: Any, inputs: Sequence[Any], **_: Any
    ) -> GraphModule:
        graph_module = self._traced(function, inputs)
        if function is self._pattern.replacement:
            return _placed(graph_module, _now.get(_Now([])).place)
        swappable = _swappable(graph_module)
        if len(swappable) != len(order):  # for these dtypes it is another computation
            raise RuntimeError("the pattern has other operators for these inputs")
        for node in itertools.compress(swappable, order):
            node.args = (node.args[1], node.args[0], *node.args[2:])
        graph_module.recompile()
        return graph_module

    def _holds(self, found: Any) -> bool:
        """Return whether every condition holds, and note the first that does not."""
        nodes = tuple(x for x in found.output_nodes() if x is not None)
        inputs = tuple(found.kwargs[x] for x in inspect.signature(self._pattern.match).parameters)
        match = Match(inputs, nodes, tuple(found.nodes), found)
        reason = self._pattern.refusal(match)
        now = _now.get()
        if reason is not None:
            now.near.append(NearMiss.at(nodes[0], self._pattern.title, reason))
        now.place = nodes[0]  # next the replacement is traced, for this match
        return reason is None


class _Table:
    """A table of decompositions, equal to itself only: it is no key, and changes seldom."""

    def __init__(self, decompositions: Mapping[Any, Any]) -> None:
        self.decompositions = decompositions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Table) and other.decompositions is self.decompositions

    def __hash__(self) -> int:
        return id(self.decompositions)


def _placed(graph_module: GraphModule, place: Node | None) -> GraphModule:
    """Let each node of a replacement say that it comes from where the match is."""
    if place is not None:
        for node in graph_module.graph.nodes:
            node.meta |= provenance(place)
    return graph_module


def _example(pattern: Pattern) -> list[Any]:
    if pattern.example is None:
        raise InputError(
            f"pattern {pattern.title} can't be traced to ATen operators without inputs: give it "
            "example=lambda: (torch.empty(2, 3), ...), with one for each parameter"
        )
    return list(pattern.example())


def _swappable(graph_module: GraphModule) -> list[Node]:
    calls = (n for n in graph_module.graph.nodes if n.target in _COMMUTATIVE)
    return [n for n in calls if all(isinstance(x, Node) for x in n.args[:2])]


def _orders(count: int, pattern: Pattern) -> Iterator[tuple[bool, ...]]:
    if 2**count > MOST_ORDERS:
        raise InputError(
            f"pattern {pattern.title} has {count} commutative operators, and all {2**count} orders "
            "of their operands would be tried: cut it into smaller patterns"
        )
    return itertools.product((False, True), repeat=count)
