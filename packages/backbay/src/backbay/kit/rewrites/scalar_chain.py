"""Fold chains of scalar operations.

::

    before:  (x * 2) * 3    (i + 2) + 3    x * 1    x / 1    x - 0    -(-x)
    after:   x * 6          i + 5          x        x        x        x

By default only what is the same bit for bit, forward and backward, for every input, with NaN,
infinities, -0.0 and numbers next to the ends of the range among them:

- of floating-point tensors, products of whole numbers, of which one is a power of two. With others
  the product is rounded twice and would be once; with factors below one the product between may
  vanish, and with one below and one above one it may overflow, where the whole would not.
- of integer tensors, sums and products of integers: they wrap around the same way. Not by a float
  and not divided, which make another dtype.
- ``x - 0`` and ``x + -0.0``; not ``x + 0``, which makes 0.0 of -0.0. Of integers both.

``options={"allow_reassociation": True}`` allows what rounds otherwise: any product, quotient or sum
that neither overflows nor vanishes by itself, and ``x + 0``. Never folded: a factor of zero, which
would hide a NaN; a number that the dtype does not hold.

What is returned stays, where the caller would get an input, a view, a tensor that is returned
already, or one that backward needs: who changes one of them would change the other. So does what is
computed from memory that something writes, what is used elsewhere, too, and what has other strides,
or another place in autograd, than that which would take its place.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from backbay.graph.aliases import Memory
from backbay.graph.canonical import canonicalise, is_number
from backbay.graph.effects import is_pure
from backbay.graph.rewrite import call_before, replace_node, same_kind
from backbay.graph.values import storages, value_of
from backbay.kit.passes import Pass, PassContext, option

Number = int | float
_ATEN = torch.ops.aten
_KINDS: Mapping[Any, str] = {
    operator.mul: "mul",
    operator.truediv: "div",
    operator.add: "add",
    operator.sub: "sub",
    operator.neg: "neg",
    _ATEN.mul.Tensor: "mul",
    _ATEN.mul.Scalar: "mul",
    _ATEN.div.Tensor: "div",
    _ATEN.div.Scalar: "div",
    _ATEN.add.Tensor: "add",
    _ATEN.add.Scalar: "add",
    _ATEN.sub.Tensor: "sub",
    _ATEN.sub.Scalar: "sub",
    _ATEN.neg.default: "neg",
}
_JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "mul": operator.mul,
    "add": operator.add,
}
_SPELLED: Mapping[str, tuple[Any, Any]] = {
    "mul": (operator.mul, _ATEN.mul.Tensor),
    "add": (operator.add, _ATEN.add.Tensor),
}
"""At Dynamo's level, and on ATen graphs."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A tensor meets a number: ``source * number`` or ``source + number``."""

    kind: str
    source: Node
    number: Number
    inexact: bool = False
    """Whether it was a division, whose reciprocal is rounded."""


@dataclass(frozen=True, kw_only=True)
class FoldScalarChain(Pass):
    """Join numbers that a tensor meets in a row, and drop those that change nothing."""

    allow_reassociation: bool = option(
        False,  # noqa: FBT003 (the default)
        "fold chains of numbers also where that rounds otherwise",
    )

    def run(self, graph_module: GraphModule, context: PassContext) -> int:  # noqa: ARG002 (it has no near misses)
        """Fold a graph of Dynamo's, or a functional ATen graph."""
        graph = graph_module.graph
        respelled = canonicalise(graph)
        count = _Folding(graph, self.allow_reassociation).run()
        if respelled or count:
            graph_module.recompile()
        return count


fold_scalar_chain = FoldScalarChain()


class _Folding:
    def __init__(self, graph: Graph, allowed: bool) -> None:
        self._graph = graph
        self._allowed = allowed
        self._memory = Memory(graph)

    def run(self) -> int:
        return sum(self._fold(node) for node in list(self._graph.nodes))

    def _fold(self, node: Node) -> int:
        """Fold a node with what it is computed from, as often as it can be."""
        count = 0
        while (joined := self._joined(node)) is not None:
            node, count = joined, count + 1
        return count + self._dropped(node)

    def _joined(self, node: Node) -> Node | None:
        """Return one node for a step and the step before it; nothing where they can't be joined."""
        last = _step(node)
        first = None if last is None else _step(last.source)
        if first is None or last is None or first.kind != last.kind:
            return None
        if len(last.source.users) > 1 or self._memory.mutated(first.source):
            return None
        dtype = _dtype_through(first.source, last.source, node)
        number = None if dtype is None else self._together(first, last, dtype)
        return None if number is None else self._put(node, first, last.source, number)

    def _together(self, first: _Step, last: _Step, dtype: torch.dtype) -> Number | None:
        number = _JOINED[first.kind](first.number, last.number)
        if dtype.is_floating_point:
            number = float(number)  # as an integer it may not fit into 64 bits
        if not _holds(dtype, first, last, number):
            return None
        exact = not (first.inexact or last.inexact) and _is_exact(dtype, first, last)
        return number if exact or (self._allowed and dtype.is_floating_point) else None

    def _put(self, node: Node, first: _Step, middle: Node, number: Number) -> Node | None:
        target = _SPELLED[first.kind][1 if "val" in node.meta else 0]
        made = call_before(node, target, first.source, number)
        if not same_kind(made, node):
            self._graph.erase_node(made)
            return None
        self._memory.merge(node, made)
        replace_node(node, made)
        self._graph.erase_node(middle)
        return made

    def _dropped(self, node: Node) -> int:
        source = self._unchanged(node)
        if source is None or not same_kind(node, source):
            return 0
        if self._memory.mutated(node) or self._memory.mutated(source):
            return 0
        if self._memory.returned(node) and not self._can_be_returned(source):
            return 0
        inner = node.args[0]
        self._memory.merge(node, source)
        replace_node(node, source)
        if isinstance(inner, Node) and inner is not source and not inner.users:
            self._graph.erase_node(inner)  # of two negations, the first
        return 1

    def _can_be_returned(self, source: Node) -> bool:
        """Whether the caller may have a tensor instead of its copy, and write to it."""
        if self._memory.returned(source) or not is_pure(source) or source.op == "get_attr":
            return False
        own = storages(source)
        if own is None or any(own & (storages(x) or own) for x in source.all_input_nodes):
            return False
        # Backward may need a result of its own operator, or of others that read it.
        keeps_nothing = _step(source) is not None or _negated(source) is not None
        return not value_of(source).requires_grad or (keeps_nothing and len(source.users) == 1)

    def _unchanged(self, node: Node) -> Node | None:
        """Return the tensor that a node only copies."""
        step = _step(node)
        if step is not None:
            return step.source if self._is_neutral(step) else None
        inner = _negated(node)
        return None if inner is None else _negated(inner)

    def _is_neutral(self, step: _Step) -> bool:
        dtype = _dtype_through(step.source)
        if dtype is None or step.number != (1 if step.kind == "mul" else 0):
            return False
        if step.kind == "mul":
            return True
        floating = dtype.is_floating_point
        return not floating or self._allowed or math.copysign(1, step.number) < 0


def _step(node: Node) -> _Step | None:
    """Read a node as a tensor that meets a number; subtraction and division count as well."""
    kind = _KINDS.get(node.target) if node.op == "call_function" else None
    if kind in {None, "neg"} or node.kwargs or len(node.args) != 2:  # noqa: PLR2004 (binary)
        return None
    source, number = node.args
    if not isinstance(source, Node) or not is_number(number):
        return None
    return _as_step(str(kind), source, number)  # type: ignore[arg-type] # is_number told


def _as_step(kind: str, source: Node, number: Number) -> _Step | None:
    if kind == "sub":
        floating = (dtype := _dtype_through(source)) is not None and dtype.is_floating_point
        return _Step("add", source, -float(number) if floating else -number)
    if kind != "div":
        return _Step(kind, source, number)
    if number == 0 or not math.isfinite(number):
        return None
    return _Step("mul", source, 1 if number == 1 else 1 / number, inexact=number != 1)


def _negated(node: Node) -> Node | None:
    if node.op != "call_function" or _KINDS.get(node.target) != "neg":
        return None
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _dtype_through(*nodes: Node) -> torch.dtype | None:
    """Return the dtype that tensors share; nothing where one is none, or is no real number."""
    values = [value_of(x) for x in nodes]
    if not all(isinstance(x, torch.Tensor) for x in values):
        return None
    dtypes = {x.dtype for x in values}
    dtype = dtypes.pop()
    known = not dtypes and not dtype.is_complex and dtype != torch.bool
    return dtype if known else None


def _holds(dtype: torch.dtype, first: _Step, last: _Step, number: Number) -> bool:
    """Whether a dtype holds all numbers of a fold, and none of them is lost in it."""
    numbers = (first.number, last.number, number)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return all(isinstance(x, int) and limits.min <= x <= limits.max for x in numbers)
    info = torch.finfo(dtype)
    least = info.tiny if first.kind == "mul" else 0  # a factor must not be subnormal
    return all(least <= abs(x) <= info.max for x in numbers)


def _is_exact(dtype: torch.dtype, first: _Step, last: _Step) -> bool:
    if not dtype.is_floating_point:
        return not (first.kind == "mul" and 0 in {first.number, last.number})
    if first.kind == "add":
        return False
    numbers = (first.number, last.number)
    whole = all(float(x).is_integer() for x in numbers)
    # Backward multiplies in the other order: either one may be the power of two.
    return whole and any(_is_power_of_two(x) for x in numbers) and _is_read_exactly(*numbers)


def _is_power_of_two(number: Number) -> bool:
    return abs(math.frexp(number)[0]) == 0.5  # noqa: PLR2004 (a mantissa of one bit)


def _is_read_exactly(*numbers: Number) -> bool:
    """Whether each number fits into a float's mantissa, which the operators compute with."""
    return all(abs(x) <= 2**24 for x in (*numbers, math.prod(numbers)))
