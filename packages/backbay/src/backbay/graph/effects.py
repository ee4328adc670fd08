"""What a node does beside giving a value: nothing, as far as is known, or something.

Torch's own ``Node.is_impure`` takes every function that it does not know for pure, and every
method: it removes ``x.add_(1)``, and an assertion that a library wrote. Here it is the other way
round: pure is what is known to be. A pass that errs so misses a chance, and breaks nothing.
"""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.utils import is_impure
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

_IN_PLACE = frozenset(
    getattr(operator, f"i{name}")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift", "concat"),
    )
) | {operator.setitem, operator.delitem, setattr}
_IN_PLACE_METHODS = frozenset(
    f"__i{x.__name__[1:].rstrip('_')}__" for x in _IN_PLACE if x.__name__.startswith("i")
) | {"__setitem__", "__delitem__"}
_STATE = ("_enter", "_exit", "_set_", "set_", "_autocast", "_functorch", "lift_")
"""How functions begin that change what later ones mean: autocast, gradients, vmap."""

_MODES = frozenset({"set_grad_enabled", "_set_grad_enabled", "_enter_autocast", "_exit_autocast"})

_UPDATES_STATISTICS = frozenset(
    {"batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
)
"""They write running statistics, and their schemas do not say so."""
_STATISTICS = ("running_mean", "running_var")
"""What ``F.batch_norm`` may write, its second and third parameter."""
_RENORMALISES = frozenset({"embedding", "embedding_bag"})
"""With ``max_norm`` they write the weight."""
_DRAWS = frozenset({"gumbel_softmax", "multi_head_attention_forward"})
"""Torch functions written in Python that draw random numbers; operators carry a tag."""
_DROPOUT: dict[Any, str] = {torch.nn.functional.dropout: "training", torch.dropout: "train"}
"""To what its switch is called."""
_DRAWS_SAMPLES = ("fractional_max_pool", "dropout", "rand", "feature_", "alpha_dropout", "seed")
_UNINITIALISED = ("empty", "new_empty", "_efficientzerotensor")
_STATEFUL_METHODS = frozenset(
    {"backward", "record_stream", "register_hook", "register_post_accumulate_grad_hook"}
    | {"retain_grad", "share_memory", "item", "tolist", "numpy", "set", "__setstate__"}
    | {"module_load", "data_ptr", "storage", "untyped_storage", "to_mkldnn", "is_set_to"}
)
_STATEFUL_FUNCTIONS = frozenset({"from_file", "manual_seed", "fused_moving_avg_obs_fake_quant"})

_READERS = frozenset({torch.ops.higher_order.flex_attention})
"""Higher-order operators that write nothing, if the functions that they are given do not."""
_COUNTS_USE = getattr(torch._C, "_log_api_usage_once", None)  # noqa: SLF001 (Dynamo records it)
"""Torch's counter of its own use, which touches no tensor: in graphs of programs that make a
module."""
_PRIVATE = ("_int_mm", "_scaled_mm")
"""Products of 8 bits, which models call although their names are private."""

_STREAMS = "streams."
"""How names of operators begin that record events and wait for them, or change the stream."""
_ATEN = frozenset({"aten", "prims"})
_PURE = _ATEN | {"backbay"}


def mutates(node: Node) -> bool:
    """Return whether a node changes one of its arguments in place."""
    if node.op == "call_method":
        name = str(node.target)
        return _ends_in_place(name) or name in _IN_PLACE_METHODS
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return _writes(node.target) or _base_name(node) in _UPDATES_STATISTICS
    if isinstance(node.target, OpOverloadPacket):
        return any(map(_writes, _overloads(node.target)))
    if getattr(node.target, "__module__", None) == operator.add.__module__:
        return node.target in _IN_PLACE  # by name, operator.and_ would write
    return (
        node.target in _IN_PLACE
        or _ends_in_place(_base_name(node))
        or node.kwargs.get("out") is not None
        or bool(_argument(node, "inplace"))
        or _writes_a_buffer(node)
        or (node.target is not F.batch_norm and _named_after_a_writer(_base_name(node)))
    )


def may_write(node: Node) -> bool:
    """Return whether a node changes an argument in place, or is something that nobody knows."""
    unknown = node.op == "call_module" or (node.op == "call_function" and not is_known(node))
    return (unknown and not _only_reads(node)) or mutates(node)


def written(node: Node) -> list[Node]:
    """Return what a node that may write writes to: all it is given, where no name says which."""
    first = node.args[0] if node.args else None
    if node.target is F.batch_norm:
        given = {**dict(zip(_STATISTICS, node.args[1:], strict=False)), **node.kwargs}
        return [x for x in map(given.get, _STATISTICS) if isinstance(x, Node)]
    if node.op == "call_method" and mutates(node) and str(node.target) != "set_":
        return [first] if isinstance(first, Node) else node.all_input_nodes
    if node.target in _IN_PLACE and isinstance(first, Node):
        return [first]
    return node.all_input_nodes


def reads_by_index(node: Node) -> bool:
    """Return whether a node reads elements of tensors, wherever they lie: what PyTorch has does.

    What is not PyTorch's may be written for tensors without gaps.
    """
    if "as_strided" in getattr(node.target, "__name__", str(node.target)):
        return False
    if node.op == "call_method":
        return _is_tensor_method(str(node.target))
    if isinstance(node.target, OpOverload):
        return node.target.namespace in _ATEN
    return node.op == "call_function" and node.target in _known_functions()


def sets_a_mode(node: Node) -> bool:
    """Return whether a node turns gradients or autocast on or off."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _MODES


def changes_state(node: Node) -> bool:
    """Return whether what follows a node may mean something else than what is before it."""
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (name.startswith(_STATE) or _orders_streams(node))


def uses_streams(graph_module: GraphModule) -> bool:
    """Return whether a program runs in streams that it chooses, or has one wait for another.

    Streams are metadata of Dynamo's nodes, and what waits for an event names none of the tensors
    that it waits for.
    """
    graphs = (x.graph for x in graph_module.modules() if isinstance(x, GraphModule))
    return any(_is_in_a_stream(x) or _orders_streams(x) for graph in graphs for x in graph.nodes)


def _is_in_a_stream(node: Node) -> bool:
    return (node.meta.get("custom") or {}).get("stream") is not None


def _orders_streams(node: Node) -> bool:
    is_operator = isinstance(node.target, (OpOverload, OpOverloadPacket))
    return is_operator and str(node.target).startswith(_STREAMS)


def is_random(node: Node) -> bool:
    """Return whether a node draws from a generator, and so moves it on."""
    if isinstance(node.target, OpOverload):
        return _draws(node.target) and _dropout_within(node) != 0
    if isinstance(node.target, OpOverloadPacket):
        return any(map(_draws, _overloads(node.target)))
    name = str(node.target) if node.op == "call_method" else _base_name(node)
    return name in _DRAWS or name.startswith(_DRAWS_SAMPLES) or _named_after_a_draw(name)


def is_dropout(node: Any) -> bool:
    """Whether a node calls dropout, on Dynamo's graphs."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in _DROPOUT


def drops(node: Node) -> bool:
    """Whether a call of dropout may set anything to zero."""
    switch = _DROPOUT[node.target]
    given = {**dict(zip(("input", "p", switch), node.args, strict=False)), **node.kwargs}
    return not (given.get(switch, True) is False or given.get("p", 0.5) == 0.0)


def is_uninitialised(node: Node) -> bool:
    """Return whether a node gives memory with whatever is in it."""
    name = str(node.target) if node.op == "call_method" else _base_name(node)
    return name.startswith(_UNINITIALISED)


def is_pure(node: Node) -> bool:
    """Return whether a node does nothing but compute a value from its arguments, always the same.

    Only operators of PyTorch, of Backbay, and of Python's ``operator`` and ``math`` are known to be
    pure: not custom operators, not higher-order ones, not what ``allow_in_graph`` let in.
    """
    if node.op == "get_attr":
        return True
    if node.op == "call_method":
        known = _is_tensor_method(str(node.target))
    elif node.op != "call_function":
        return False
    elif isinstance(node.target, OpOverload):
        known = node.target.namespace in _PURE and not is_impure(node.target)
    else:
        known = is_known(node) and not isinstance(node.target, OpOverloadPacket)
    binds = "unbacked_bindings" in node.meta  # a size that only the run knows is born here
    return known and not binds and not mutates(node) and not is_random(node)


def is_known(node: Node) -> bool:
    """Return whether it is known what a function writes."""
    return isinstance(node.target, (OpOverload, OpOverloadPacket)) or (
        node.target in _known_functions()
    )


def _only_reads(node: Node) -> bool:
    """Return whether a function that `is_known` does not cover, and what it is given, only read."""
    if node.target is _COUNTS_USE:
        return True
    owner = node.graph.owning_module
    if node.target not in _READERS or owner is None:
        return False
    named = [str(x.target) for x in node.all_input_nodes if x.op == "get_attr"]
    bodies = [
        x for x in (getattr(owner, name, None) for name in named) if isinstance(x, GraphModule)
    ]
    return not any(may_write(x) for body in bodies for x in body.graph.nodes)


def _ends_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _base_name(node: Node) -> str:
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.partition("::")[2]  # noqa: SLF001 (nothing else has it)
    return getattr(node.target, "__name__", "")


def _argument(node: Node, name: str) -> Any:
    """Return an argument of a Python function by its name, however it was passed."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = _parameters(node.target) if callable(node.target) else ()
    position = names.index(name) if name in names else len(node.args)
    return node.args[position] if position < len(node.args) else None


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # made in C
        return ()


def _writes_a_buffer(node: Node) -> bool:
    name = _base_name(node)
    if name in _RENORMALISES:
        return _argument(node, "max_norm") is not None
    if node.target is F.batch_norm:
        statistics = ("running_mean", "running_var")
        has_any = any(_argument(node, x) is not None for x in statistics)
        return has_any and bool(_argument(node, "training"))
    return name in _UPDATES_STATISTICS


def _overloads(packet: OpOverloadPacket) -> Iterator[OpOverload]:
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call] # torch has no stub
    return (getattr(packet, name) for name in names)


def _writes(overload: OpOverload) -> bool:
    return bool(overload._schema.is_mutable)  # noqa: SLF001 (its schema has no other name)


def _draws(overload: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in overload.tags


def _dropout_within(node: Node) -> Any:
    """Return the probability with which attention drops its weights; None for another operator."""
    for number, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr] # noqa: SLF001 (as above)
        if argument.name == "dropout_p":
            given = dict(enumerate(node.args)).get(number, argument.default_value)
            return node.kwargs.get(argument.name, given)
    return None


@functools.cache
def _named_after_a_writer(name: str) -> bool:
    """Return whether the operator of a torch function writes an argument, ``out`` apart."""
    schemas = (x._schema for x in _named(name))  # noqa: SLF001 (as above)
    return any(
        x.alias_info is not None and x.alias_info.is_write and not x.is_out
        for schema in schemas
        for x in schema.arguments
    )


@functools.cache
def _named_after_a_draw(name: str) -> bool:
    return any(map(_draws, _named(name)))


def _named(name: str) -> Iterator[OpOverload]:
    """Yield ATen's operators of a name, if there are any."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    return _overloads(packet) if isinstance(packet, OpOverloadPacket) else iter(())


@functools.cache
def _is_tensor_method(name: str) -> bool:
    private = name.startswith(("set_", "_")) and not name.endswith("__")
    if name in _STATEFUL_METHODS or private:
        return False
    return callable(getattr(torch.Tensor, name, None))


@functools.cache
def _known_functions() -> frozenset[Any]:
    in_c = ("_VariableFunctions", "_nn", "_special", "_linalg", "_fft")
    # Dynamo's functions come from there; the public modules hold much that is no operator.
    places = (*(getattr(torch._C, x) for x in in_c), torch.functional, F, operator, math)  # noqa: SLF001
    found = (
        getattr(place, name) for place in places for name in dir(place) if not name.startswith("_")
    )
    known = {x for x in found if callable(x) and not isinstance(x, type)}
    known |= {getattr(torch, name) for name in _PRIVATE}
    stateful = {x for x in known if getattr(x, "__name__", "") in _STATEFUL_FUNCTIONS}
    data = getattr(torch._C._autograd, "_get_data_attr", getattr)  # noqa: SLF001 (``x.data``)
    return frozenset(known - stateful | {getattr, data, abs, max, min, pow, round, sum, len, slice})
