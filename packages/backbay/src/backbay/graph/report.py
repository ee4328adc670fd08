"""Describe a graph in words: every node with its shape and the user's line; operators; groups."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from backbay.errors import line_of
from backbay.graph.values import value_of

_NAMES = (
    "abs add addcdiv addcmul bitwise_and bitwise_or bitwise_xor ceil clamp clamp_max "
    "clamp_min cos div divide dropout elu eq erf erfc exp expm1 floor floordiv gelu ge gt "
    "hardsigmoid hardswish hardtanh iadd imul invert isub itruediv le leaky_relu lerp log "
    "log1p log2 logical_and logical_not logical_or lt masked_fill maximum minimum mish mod "
    "mul multiply ne neg negative pow reciprocal relu relu6 round rsqrt rsub selu sigmoid "
    "sign silu sin softplus sqrt square sub subtract tan tanh truediv true_divide where"
)
_POINTWISE = frozenset(_NAMES.split())
"""Names of functions and methods that compute each element from the same element."""


@dataclass(frozen=True, slots=True)
class Row:
    """One node of a graph, in words."""

    op: str
    name: str
    target: str
    shape: str
    dtype: str
    line: str
    """The user's own line, ``file:line: code``; empty where nobody knows."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A graph in numbers."""

    operators: Counter[str]
    """By target, calls only."""
    groups: tuple[tuple[str, ...], ...]
    """Names of nodes that a code generator can fuse: connected pointwise operators, two or more."""

    def __str__(self) -> str:
        """Return it in one line."""
        ops = sum(self.operators.values())
        return f"Graph: {_count(ops, 'op')}, {_count(len(self.groups), 'fusable group')}"


def rows(graph: Graph) -> Iterator[Row]:
    """Describe each node of a graph, in order."""
    for node in graph.nodes:
        value = value_of(node)
        yield Row(
            op=node.op,
            name=node.name,
            target=target_name(node),
            shape=_shape(value),
            dtype=str(getattr(value, "dtype", "")).removeprefix("torch."),
            line=user_line(node),
        )


def table(graph: Graph) -> str:
    """Return a graph as a table of text."""
    lines = [("op", "name", "target", "shape", "dtype", "line")]
    lines += [(r.op, r.name, r.target, r.shape, r.dtype, r.line) for r in rows(graph)]
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    padded = ("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def listing(graph: Graph) -> list[str]:
    """Return a graph as lines of text that say what it computes, and no more: for a diff.

    A node's users are not in it: what a pass did not change has the same line before and after.
    """
    described = zip(graph.nodes, rows(graph), strict=True)
    return [_line(node, row) for node, row in described]


def summary(graph: Graph) -> Summary:
    """Count a graph's operators, and find what can be fused."""
    calls = [n for n in graph.nodes if n.op in {"call_function", "call_method", "call_module"}]
    return Summary(Counter(target_name(n) for n in calls), tuple(_groups(calls)))


def target_name(node: Node) -> str:
    """Return what a node calls, as a reader would write it."""
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def user_line(node: Node) -> str:
    """Return the user's line that a node comes from: the innermost of its stack."""
    return line_of(node.meta.get("stack_trace") or "")


def first_line(graph: Graph) -> str:
    """Return the first of the user's lines that a graph comes from, for an error."""
    lines = (user_line(node) for node in graph.nodes)
    return next((x for x in lines if x), "code that nobody knows")


def is_pointwise(node: Node) -> bool:
    """Return whether a node computes each element from the same element of its inputs."""
    if node.op == "call_method":
        return str(node.target).rstrip("_") in _POINTWISE
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return torch.Tag.pointwise in node.target.tags
    # operator.mul on sizes is arithmetic on numbers, not on tensors.
    named = getattr(node.target, "__name__", "").rstrip("_") in _POINTWISE
    return named and isinstance(value_of(node), torch.Tensor)


class _Name(str):
    """A node's name among arguments: without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _line(node: Node, row: Row) -> str:
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda n: _Name(n.name))
    if node.op == "output":
        return f"return {arguments[0]!r}"
    kind = " ".join(filter(None, (row.dtype, row.shape)))
    head = f"{node.name}: {kind}" if kind else node.name
    if node.op == "placeholder":
        return f"{head} = input"
    given = [repr(x) for x in arguments] + [f"{key}={x!r}" for key, x in keywords.items()]
    if node.op == "get_attr":
        return f"{head} = self.{row.target}"
    called = row.target
    if node.op == "call_method" and node.args:
        called = f"{given.pop(0)}.{row.target}"
    return f"{head} = {called}({', '.join(given)})"


def _groups(calls: list[Node]) -> Iterator[tuple[str, ...]]:
    left = {node for node in calls if is_pointwise(node)}
    for node in calls:
        if node not in left:
            continue
        group = _connected(node, left)
        left -= group
        if len(group) > 1:
            yield tuple(n.name for n in calls if n in group)


def _connected(start: Node, among: set[Node]) -> set[Node]:
    found, ahead = {start}, [start]
    while ahead:
        node = ahead.pop()
        for other in (*node.all_input_nodes, *node.users):
            if other in among and other not in found:
                found.add(other)
                ahead.append(other)
    return found


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "x".join(str(size) for size in value.shape) or "scalar"
    return type(value).__name__ if value is not None else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
