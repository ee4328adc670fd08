"""One spelling for each operator of a torch-level graph.

Dynamo keeps what the user wrote: ``x.sigmoid()``, ``torch.sigmoid(x)`` and ``F.sigmoid(x)`` are
three different nodes, and a pattern written with one of them does not match the others. Here they
become one. Only the spelling of calls changes: the same operator is called with the same values.

    before:  call_method sigmoid(x), call_function torch.mul(x, s), F.sigmoid, 2 * x
    after:   call_function torch.sigmoid(x), call_function operator.mul(x, s), torch.sigmoid, x * 2

In-place calls are left as they are: they are another operator, whose argument others may see.
"""

import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.values import value_of

Target = Callable[..., Any]

_BINARY: Mapping[str, Target] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "pow": operator.pow,
    "matmul": operator.matmul,
}
"""Of torch and of tensors alike; with two operands and no further argument they are operators."""

_UNARY: Mapping[str, Target] = {
    "neg": operator.neg,
    "negative": operator.neg,
    "abs": torch.abs,
    "absolute": torch.abs,
    "exp": torch.exp,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "log": torch.log,
    "relu": torch.relu,
}

_FUNCTIONS: Mapping[Any, Target] = {
    **{getattr(torch, name): target for name, target in {**_BINARY, **_UNARY}.items()},
    **{target: target for target in (operator.add, operator.mul)},
    F.sigmoid: torch.sigmoid,
    F.tanh: torch.tanh,
    F.relu: torch.relu,
    torch.special.expit: torch.sigmoid,
    torch.special.erf: torch.erf,
    builtins.abs: torch.abs,
    builtins.pow: operator.pow,
    operator.abs: torch.abs,
}
_METHODS: Mapping[str, Target] = {**_BINARY, **_UNARY}
_MAGIC: Mapping[str, Target] = {
    f"__{name}__": getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "pow", "matmul", "neg")
}
_REFLECTED: Mapping[str, Target] = {
    f"__r{name}__": getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")
}

COMMUTATIVE: frozenset[Any] = frozenset({operator.add, operator.mul})
"""Of canonical targets: their operands may be exchanged, for tensors and numbers bit for bit. A
number stands second."""


def canonicalise(graph: Graph) -> int:
    """Spell every call of a torch-level graph canonically; return how many changed.

    Metadata stays: the nodes are the same. The graph module's code is not made anew.
    """
    return sum(_canonical(node) for node in graph.nodes)


def canonical_target(node: Node) -> Any:
    """Return what a node would call in its canonical spelling."""
    found = _target_of(node)
    return node.target if found is None else found[0]


def _canonical(node: Node) -> bool:
    found = _target_of(node)
    if found is None:
        return False
    target, arguments = found
    if target in COMMUTATIVE and is_number(arguments[0]):
        arguments = arguments[::-1]
    if node.target is target and node.args == arguments:
        return False
    node.op, node.target, node.args, node.kwargs = "call_function", target, arguments, {}
    return True


def _target_of(node: Node) -> tuple[Target, tuple[Any, ...]] | None:
    arguments = _positional(node)
    if arguments is None:
        return None
    if node.op == "call_method":
        name = str(node.target)
        if name in _REFLECTED and len(arguments) == 2:  # noqa: PLR2004 (a binary operator)
            return _REFLECTED[name], arguments[::-1]
        target = _METHODS.get(name) or _MAGIC.get(name)
    else:
        target = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
    wanted = 2 if target in _BINARY.values() else 1
    if target is None or len(arguments) != wanted:
        return None
    first = value_of(arguments[0])
    if target is torch.abs and first is not None and not isinstance(first, torch.Tensor):
        return None  # abs(x.shape[0]) is Python's
    return target, arguments


def _positional(node: Node) -> tuple[Any, ...] | None:
    """Return a call's arguments by position; nothing where a keyword means more than that."""
    given = {name: x for name, x in node.kwargs.items() if (name, x) != ("inplace", False)}
    if not given:
        return node.args
    named = [given[name] for name in ("input", "other", "exponent") if name in given]
    return (*node.args, *named) if len(named) == len(given) else None


def is_number(value: Any) -> bool:
    """Return whether an argument of a node is a Python number; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
