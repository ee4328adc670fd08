"""Find a pattern, written as a plain function, in a torch-level graph.

Torch's own matcher compares nodes one by one: ``a * b`` is not ``b * a`` to it, and a method is not
a function. So both sides are made canonical first (``canonical.py``), every order of commutative
operands of the pattern is tried, and then torch's ``SubgraphMatcher`` matches; with numbers that
are only close, where a pattern allows it.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node, Tracer
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from backbay.errors import InputError, plain
from backbay.graph.canonical import COMMUTATIVE, canonicalise, is_number
from backbay.graph.values import is_data_dependent, value_of

MOST_ORDERS = 256
"""Orders of commutative operands that are tried of one pattern: eight commutative operators."""

Nearest = Callable[..., Iterable[tuple[Node, str]]]
"""Finds where a pattern nearly stands in a graph, and what differs: `nearness.nearest`, which only
those import who look on."""

Condition = Callable[["Match"], str | None]
"""Returns why a match is not used, or ``None``. ``match.inputs`` are nodes, or constants, and
`values.value_of` returns the fake tensor of a node."""


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a pattern is found."""

    inputs: tuple[Any, ...]
    """What the pattern's parameters are here: nodes, or constants; in their order."""

    outputs: tuple[Node, ...]
    """The nodes that compute the pattern's results."""

    nodes: tuple[Node, ...]
    """Every node that the pattern covers."""

    found: Any
    """Torch's own record: of its subgraph matcher, or of Inductor's pattern matcher."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a pattern is found and not used, or nearly found.

    It holds texts, and no node: a node keeps its whole graph alive, with the fake values in it.
    """

    pattern: str
    node: str
    """The node's name."""
    reason: str
    """The first condition that failed; one line."""
    stack_trace: str = ""
    """Where the user wrote the node, as Dynamo knows it; see ``errors.line_of``."""

    @classmethod
    def at(cls, node: Node, pattern: str, reason: str) -> "NearMiss":
        """Return the near miss of a node."""
        return cls(pattern, node.name, reason, str(node.meta.get("stack_trace") or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A function to find, what takes its place, and when.

    ::

        Pattern(match=lambda x: torch.sigmoid(x) * x, replacement=lambda x: F.silu(x))

    Both are traced with ``torch.fx.symbolic_trace``: straight-line code on tensors. For graphs of
    ATen operators they are traced with example inputs, if the pattern has any.
    """

    match: Callable[..., Any]
    replacement: Callable[..., Any]
    """Of the same parameters; returns as many results."""
    conditions: tuple[Condition, ...] = ()
    """All must hold; the first that does not is the near miss. A pattern whose replacement is an
    operator with a kernel asks here whether the kernel takes the inputs."""
    tolerance: float | None = None
    """How far, relatively, a number in the graph may be from the one in the pattern: people write
    0.7978845608 for ``math.sqrt(2 / math.pi)``, and 1.0 for 1. Without it numbers must be the same,
    of the same type. On ATen graphs numbers must always be the same."""
    example: Callable[[], Sequence[Any]] | None = None
    """Makes an input for each parameter, to trace the pattern to ATen operators: of the number of
    dimensions that it is for, with the sizes that must differ different."""
    name: str = ""

    def __post_init__(self) -> None:
        """Check that the two sides take and give as much.

        Raises:
            ValueError: they do not, or one can't be traced.
        """
        sides = [
            self._signature("match", self.match),
            self._signature("replacement", self.replacement),
        ]
        if sides[0] != sides[1]:
            raise ValueError(
                f"pattern {self.title}: it takes {sides[0][0]} inputs and gives {sides[0][1]} "
                f"results, its replacement takes {sides[1][0]} and gives {sides[1][1]}"
            )

    def _signature(self, side: str, function: Callable[..., Any]) -> tuple[int, int]:
        """Return how many inputs a function takes, and how many results it gives."""
        try:
            nodes = list(traced(function).nodes)
        except Exception as error:  # torch's, or of the function's own code
            raise ValueError(
                f"pattern {self.title}: its {side} can't be traced ({plain(str(error))}): write "
                "straight-line code on tensors, and a pattern for each branch"
            ) from error
        results = nodes[-1].args[0]
        count = len(results) if isinstance(results, (tuple, list)) else 1
        return sum(node.op == "placeholder" for node in nodes), count

    @property
    def title(self) -> str:
        """Its name, or its function's."""
        return self.name or getattr(self.match, "__name__", "pattern")

    def refusal(self, match: Match) -> str | None:
        """Return why a match is not to be used: the first condition that does not hold.

        Raises:
            InputError: a condition returns something else than a reason or None.
        """
        for condition in self.conditions:
            try:
                reason: object = condition(match)
            except RuntimeError as error:
                if not is_data_dependent(error):
                    raise
                return "it depends on a size that is known only when it runs"
            if isinstance(reason, str):
                return reason
            if reason is not None:
                name = getattr(condition, "__name__", type(condition).__name__)
                raise InputError(
                    f"condition {name} of pattern {self.title} returned {reason!r}: return why the "
                    "match is not used, or None"
                )
        return None


def is_floating_point(position: int = 0) -> Condition:
    """Return a condition: an input of the pattern is a tensor of real floating-point numbers."""

    def condition(match: Match) -> str | None:
        given = match.inputs[position]
        value = value_of(given)
        if not isinstance(value, torch.Tensor):
            return f"input {position} is {given}, not a tensor that is known"
        if not value.is_floating_point():
            return f"input {position} is {value.dtype}, not floating point"
        return None

    return condition


@dataclass(slots=True)
class Found:
    """What a search found."""

    matches: list[Match] = field(default_factory=list)
    near: list[NearMiss] = field(default_factory=list)


def find(pattern: Pattern, graph: Graph, *, nearest: Nearest | None = None) -> Found:
    """Find every place where a pattern holds in a canonical graph; places do not overlap.

    A node inside a match that is used outside it, too, is no match: replacing it would compute it
    twice, or lose it. Torch's matcher sees to that, and to what mutates between.

    Args:
        pattern: what to find.
        graph: a torch-level graph, made canonical by `canonicalise`.
        nearest: finds places that differ from the pattern by one thing, which are near misses, too.
    """
    found, taken = Found(), set[Node]()
    if _called(pattern.match) <= {node.target for node in graph.nodes}:
        _search(pattern, graph, found, taken)
    if nearest is not None:
        known = {*taken, *(x for x in graph.nodes if x.name in {y.node for y in found.near})}
        wanted = traced(pattern.match)
        differing = nearest(wanted, graph, known, tolerance=pattern.tolerance)
        found.near += (NearMiss.at(node, pattern.title, words) for node, words in differing)
    return found


def _search(pattern: Pattern, graph: Graph, found: Found, taken: set[Node]) -> None:
    for order in orders(pattern.match):
        matcher = _Matcher(order, pattern.tolerance)
        for raw in matcher.match(graph):
            match = _match(raw, order)
            if taken.intersection(match.nodes):
                continue
            reason = pattern.refusal(match)
            if reason is None:
                taken.update(match.nodes)
                found.matches.append(match)
            else:
                found.near.append(NearMiss.at(match.outputs[0], pattern.title, reason))
        found.near += (NearMiss.at(node, pattern.title, x) for node, x in matcher.leaking)


def is_call(node: Any, targets: Collection[Any]) -> bool:
    """Whether a node calls one of some functions, or one of some methods by its name."""
    if not isinstance(node, Node) or node.op not in {"call_function", "call_method"}:
        return False
    return node.target in targets


def first_input(node: Node) -> Any:
    """Return what a call of an operator of PyTorch's is given first, by position or by name."""
    return node.args[0] if node.args else node.kwargs.get("input")


class _Matcher(SubgraphMatcher):
    """Torch's matcher, to which close numbers may be equal."""

    def __init__(self, pattern: Graph, tolerance: float | None) -> None:
        super().__init__(pattern)
        self._tolerance = tolerance
        self.leaking: list[tuple[Node, str]] = []
        """What would match, if nothing outside used what is inside; and what does."""

    def _is_contained(self, nodes_map: dict[Node, Node]) -> bool:
        if super()._is_contained(nodes_map):
            return True
        inside = {gn for pn, gn in nodes_map.items() if pn.op not in {"placeholder", "output"}}
        ends = {nodes_map[pn] for pn in self.pattern_returning_nodes}
        used = ((node, x) for node in inside - ends for x in node.users if x not in inside)
        node, user = min(used, key=lambda x: (x[0].name, x[1].name))
        end = min(ends, key=lambda x: x.name)
        self.leaking.append((end, f"{node.name}, inside it, is used outside, by {user.name}"))
        return False

    def _match_literals(self, pn: Any, gn: Any, match: InternalMatch) -> bool:
        if self._tolerance is not None and is_number(pn) and is_number(gn):
            return math.isclose(pn, gn, rel_tol=self._tolerance)
        return bool(super()._match_literals(pn, gn, match))


@functools.lru_cache(maxsize=512)
def orders(function: Callable[..., Any]) -> tuple[Graph, ...]:
    """Return a pattern's graph, canonical, with its commutative operands in every order.

    Raises:
        ValueError: it has more commutative operators than can be tried.
    """
    first = traced(function)
    # A number already stands where it stands in every canonical graph.
    swappable = [
        position
        for position, node in enumerate(first.nodes)
        if node.target in COMMUTATIVE and not any(is_number(x) for x in node.args)
    ]
    number = 2 ** len(swappable)
    if number > MOST_ORDERS:
        raise ValueError(
            f"the pattern has {len(swappable)} commutative operators, and all {number} orders of "
            "their operands would be tried: cut it into smaller patterns"
        )
    return tuple(_distinct(first, swappable))


@functools.lru_cache(maxsize=512)
def _called(function: Callable[..., Any]) -> frozenset[Any]:
    return frozenset(n.target for n in traced(function).nodes if n.op == "call_function")


@functools.lru_cache(maxsize=512)
def traced(function: Callable[..., Any]) -> Graph:
    """Trace a pattern or replacement to a canonical graph, once: it is for reading."""
    graph = Tracer().trace(function)
    canonicalise(graph)
    return graph


def _distinct(first: Graph, swappable: Sequence[int]) -> Iterator[Graph]:
    seen = set[str]()
    for choice in itertools.product((False, True), repeat=len(swappable)):
        graph = Graph()
        graph.output(graph.graph_copy(first, {}))
        nodes = list(graph.nodes)
        for position, swap in zip(swappable, choice, strict=True):
            if swap:
                nodes[position].args = nodes[position].args[::-1]
        text = str(graph)
        if text not in seen:
            seen.add(text)
            yield graph


def _match(raw: InternalMatch, order: Graph) -> Match:
    inner = [n for n in order.nodes if n.op not in {"placeholder", "output"}]
    return Match(
        inputs=tuple(raw.placeholder_nodes),
        outputs=tuple(raw.returning_nodes),
        nodes=tuple(raw.nodes_map[n] for n in inner),
        found=raw,
    )
