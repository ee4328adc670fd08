"""Fake values after a pass: of what it changed they are computed anew, so that they can be checked.

A pass in plain ``torch.fx`` sets none, or leaves on a node what was there before. A node keeps the
value that a pass computed for it. Nothing here adds a guard to the graph: where a node takes a
symbolic size for a number, that is an error, and torch would silently compile for that number.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.errors import GraphBroken, ShapeAssumed, WrongDtype
from backbay.graph.effects import changes_state, is_known, mutates
from backbay.graph.values import (
    call_fake,
    computed,
    fake_mode,
    is_ordinary,
    is_submodule,
    is_symbolic,
    key_of,
    state_at,
    storages,
    value_of,
)

_UNKNOWN = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
"""What fake tensors raise where they can't tell, and a real one might."""


class Call(NamedTuple):
    """A node as it was: nodes change in place."""

    op: str
    target: Any
    args: Any
    kwargs: Any
    value: Any


def calls_of(graph: Graph) -> dict[Node, Call]:
    """Return every node of a graph as it is now."""
    return {x: Call(x.op, x.target, x.args, x.kwargs, value_of(x)) for x in graph.nodes}


def kind(value: Any) -> Any:
    """Return what a pass must keep of a value: dtype, device, sizes, whether it has a gradient.

    Sizes are numbers and texts: comparing symbols would guard on the answer.
    """
    if isinstance(value, torch.Tensor):
        sizes = tuple(x if isinstance(x, int) else str(x) for x in value.shape)
        return value.dtype, value.device, sizes, value.requires_grad
    if isinstance(value, (tuple, list)):
        return tuple(map(kind, value))
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def propagate_changes(graph_module: GraphModule, before: Mapping[Node, Call], who: str) -> None:
    """Set the values of what a pass changed in a graph, and of what is computed from that.

    Where a value can't be known without running the graph, it stays as it is.

    Args:
        graph_module: as the pass left it.
        before: its nodes before the pass; see `calls_of`.
        who: the pass, for the error.

    Raises:
        WrongDtype: a node can't take the dtype that it now gets.
        ShapeAssumed: it can't take the shape, or takes a symbolic size for a number.
        GraphBroken: it can't be computed for another reason.
    """
    mode = fake_mode(value_of(x) for x in graph_module.graph.nodes if x.op == "placeholder")
    if mode is None:
        return
    known = {id(was.value) for was in before.values() if was.value is not None}
    renewed: dict[Node, Any] = {}
    for node in graph_module.graph.nodes:
        was = before.get(node)
        if not _is_stale(node, was, known, renewed):
            continue
        try:
            found = _value(node, mode, who)
        except GraphBroken:
            raise
        except Exception as error:
            raise _broken(node, was, renewed, f"{who}: {node.format_node()}", error) from error
        old = value_of(node)
        if found is not None and not _is_alike(node, old, found):
            node.meta[key_of(node)] = found
            renewed[node] = old


def _is_stale(node: Node, was: Call | None, known: set[int], renewed: Mapping[Node, Any]) -> bool:
    if node.op in {"placeholder", "output"}:
        return False
    value = value_of(node)
    if was is None:  # its own value, or one that another node had and that was copied to it
        return value is None or id(value) in known
    if renewed and any(x in renewed for x in node.all_input_nodes):
        return True
    if node.args is was.args and node.kwargs is was.kwargs and node.target is was.target:
        return False
    return value is was.value and not _is_same_call(node, was)


def _is_same_call(node: Node, was: Call) -> bool:
    """Whether a node calls what it did, with nodes whose values are alike."""
    if (node.op, node.target) != (was.op, was.target):
        return False
    now, now_nested = pytree.tree_flatten((node.args, node.kwargs))
    then, then_nested = pytree.tree_flatten((was.args, was.kwargs))
    if now_nested != then_nested:
        return False
    return all(
        _can_replace(b, a, node) if isinstance(a, Node) else type(a) is type(b) and a == b
        for a, b in zip(then, now, strict=True)
    )


def _can_replace(new: Any, old: Node, user: Node) -> bool:
    """Whether the value of a user, which may view an old input, is the same with a new input."""
    was, now = value_of(old), value_of(new)
    if new is old or now is was:
        return True
    return was is not None and kind(now) == kind(was) and not _shares(value_of(user), was)


def _is_alike(node: Node, old: Any, new: Any) -> bool:
    """Whether a node's old value says of it what the new one does, in the same memory."""
    if old is None or kind(old) != kind(new):
        return False
    inputs = [value_of(x) for x in node.all_input_nodes]
    return all(_shares(old, x) == _shares(new, x) for x in inputs)


def _shares(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    own = storages(one)  # None of what vmap computes with: it has no memory
    return own is not None and own == storages(other)


def _value(node: Node, mode: FakeTensorMode, who: str) -> Any:
    """Return the value of a node, or None where only running it tells."""
    if node.op == "get_attr":
        return _held(node, mode)
    inputs = [value_of(x) for x in node.all_input_nodes]
    if any(x is None for x in inputs) or not _can_compute(node, inputs):
        return None
    if mutates(node):  # computed once more, it would change its argument's value once more
        return value_of(node.args[0]) if node.op == "call_method" else None
    given = torch.fx.map_arg((node.args, node.kwargs), value_of)
    function = (
        _module(node, mode) if node.op == "call_module" else functools.partial(call_fake, node)
    )
    with state_at(node), _assumptions(mode.shape_env) as assumed:
        try:
            found = computed(function, *given, mode=mode)
        except _UNKNOWN:
            return None
        except Exception:
            if node.op != "call_function" or is_known(node):
                raise
            return None  # somebody's own function, which may need real tensors
    if assumed:
        raise ShapeAssumed(
            f"{who}: {node.format_node()} is right only where {assumed[0]}. A size of a dynamic "
            "shape is a symbol: take it from the tensor, x.shape[0], not from an example"
        )
    return None if _unbacked(found) - _unbacked(inputs) else found


def _can_compute(node: Node, inputs: list[Any]) -> bool:
    """Whether a node is nothing that would see that a tensor is fake, or change a state."""
    tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    if not all(map(is_ordinary, tensors)) or changes_state(node):
        return False
    if node.op == "call_function":
        return isinstance(node.target, FunctionType) or is_known(node)
    return True


def _held(node: Node, mode: FakeTensorMode) -> Any:
    """Return the fake value of a tensor that the graph's module holds."""
    if is_submodule(node):
        return None
    found = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return mode.from_tensor(found, static_shapes=True) if is_ordinary(found) else None


def _module(node: Node, mode: FakeTensorMode) -> Callable[..., Any]:
    """Return what calls a submodule with fake parameters and buffers."""
    module = node.graph.owning_module.get_submodule(str(node.target))  # type: ignore[union-attr] # it is called
    state = [*module.named_parameters(), *module.named_buffers()]
    fake: dict[str, torch.Tensor] = {
        name: mode.from_tensor(x, static_shapes=True) for name, x in state
    }
    return functools.partial(torch.func.functional_call, module, fake)


@contextlib.contextmanager
def _assumptions(shape_env: Any) -> Iterator[list[str]]:
    """Add no guard in the block, and note which sizes it takes to be equal."""
    found: list[str] = []
    if shape_env is None:
        yield found
        return
    evaluate = shape_env.evaluate_expr

    def noted(expression: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = evaluate(expression, *arguments, **keywords)
        if _is_assumption(shape_env.simplify(expression), answer):
            found.append(str(expression))
        return answer

    with shape_env.suppress_guards(), shape_env.ignore_fresh_unbacked_symbols():
        shape_env.evaluate_expr = noted
        try:
            yield found
        finally:
            del shape_env.evaluate_expr


def _is_assumption(expression: Any, answer: Any) -> bool:
    """Whether an answer takes a size for another one; a remainder is no size."""
    import sympy  # type: ignore[import-untyped] # noqa: PLC0415 (torch's, and loaded by then)

    if not isinstance(expression, sympy.Eq) or answer not in {True, sympy.true}:
        return False
    return all(x.is_polynomial() for x in expression.args)


def _unbacked(values: Any) -> set[Any]:
    symbolic = [x for x in pytree.tree_leaves(values) if is_symbolic(x)]
    if not symbolic:
        return set()
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415 (as above)
        free_unbacked_symbols,
    )

    return set(free_unbacked_symbols(symbolic))


def _broken(
    node: Node, was: Call | None, renewed: Mapping[Node, Any], what: str, error: Exception
) -> GraphBroken:
    """Return the error for a node that can't take what it gets: by what it got before."""
    said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    now = [x for x in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(x, Node)]
    then = pytree.tree_leaves((was.args, was.kwargs)) if was is not None else now
    for new, old in zip(now, (x for x in then if isinstance(x, Node)), strict=False):
        had, has = renewed.get(old, value_of(old)), value_of(new)
        if not isinstance(had, torch.Tensor) or not isinstance(has, torch.Tensor):
            continue
        if had.dtype != has.dtype:
            return WrongDtype(
                f"{what} can't take {new.name} of {has.dtype}, it was {had.dtype} ({said})"
            )
        if kind(had)[2] != kind(has)[2]:
            return ShapeAssumed(
                f"{what} can't take {new.name} of shape {tuple(has.shape)}, it was "
                f"{tuple(had.shape)} ({said})"
            )
    return GraphBroken(f"{what} can't be computed from what it gets ({said})")
