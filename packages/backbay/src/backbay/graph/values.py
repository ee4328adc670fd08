"""The fake values that nodes carry: what tensor each would give, and in which memory.

They are ``example_value`` in Dynamo's graph, ``val`` after AOTAutograd. The rest of the compiler
reads them, and where the user wrote a node: what a pass puts in must carry both.
"""

import contextlib
import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.graph.fake_cache import call_cached, is_cached

CARRIED = (
    *("stack_trace", "source_fn_stack", "nn_module_stack", "original_aten", "from_node"),
    "custom",
)
"""Metadata that says where a node comes from, and what its author said of it, such as the stream
that it runs in: a replacement has it of what it replaces."""


def value_of(node: Any) -> Any:
    """Return the fake value that a node has, at either level; a constant is its own."""
    if not isinstance(node, Node):
        return node
    return node.meta.get("example_value", node.meta.get("val"))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, which may be nested."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def wants_gradient(node: Node) -> bool:
    """Whether a gradient by some of a node's results may be wanted."""
    return any(x.requires_grad for x in tensors_in(value_of(node)))


def are_numbers(sizes: Iterable[Any]) -> bool:
    """Whether sizes, or strides, are all known by now: none is a symbol."""
    return all(isinstance(x, int) for x in sizes)


def is_data_dependent(error: Exception) -> bool:
    """Whether an error says that a size was asked for which is known only when the graph runs."""
    # Slow to import, and in use where it is raised.
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # noqa: PLC0415

    return isinstance(error, GuardOnDataDependentSymNode)


def is_submodule(node: Node) -> bool:
    """Return whether a node reads a module that its graph's module owns."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return False
    return isinstance(operator.attrgetter(str(node.target))(owner), torch.nn.Module)


def is_ordinary(value: Any) -> bool:
    """Return whether a value is a tensor of no subclass: not distributed, quantised or wrapped.

    What computes a subclass has operators of its own, and knows few of those that a pass puts in.
    """
    ordinary = type(value) in {FakeTensor, torch.Tensor, torch.nn.Parameter}
    return ordinary and not _is_transformed(value)


def _is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether ``vmap``, ``grad`` or ``jvp`` computes with a tensor: it has no memory."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001 (its only home)
    return wrapped


def is_watched() -> bool:
    """Return whether hooks of the caller's see what is saved for the backward."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 (as AOTAutograd)
    return hooks(True) is not None  # noqa: FBT003 (it takes it by position alone)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Keep the caller's saved-tensor hooks from what is computed to look at a graph.

    A checkpoint of compiled code counts what is saved, and others copy it.
    """
    if not is_watched():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        yield


def propagate(node: Node, like: Node) -> None:
    """Evaluate a new node, and give it the provenance of the node that it stands for."""
    carry(node, like)
    if node.op not in {"call_function", "call_method"}:
        return
    with state_at(like):
        value = _evaluated(node, {})
    if value is not None:
        node.meta[key_of(like)] = value


def adopt(node: Node, like: Node) -> None:
    """Copy value and provenance to a new node from one that is laid out alike."""
    carry(node, like)
    node.meta[key_of(like)] = value_of(like)


@contextlib.contextmanager
def state_at(place: Node) -> Iterator[None]:
    """Record gradients, and cast, as is done where a node stands.

    A graph of Dynamo's is compiled in the state that it will be called in, and changes that by
    itself. In AOTAutograd's graphs both have become operators.
    """
    if key_of(place) == "val":
        with torch.no_grad(), torch._C._DisableAutocast():  # noqa: SLF001 (as AOTAutograd traces)
            yield
        return
    left = {x.args[0] for x in _before(place, _exit_autocast)}
    with contextlib.ExitStack() as entered:
        entered.enter_context(torch.set_grad_enabled(is_recorded(place)))
        for node in _before(place, _enter_autocast):
            if node not in left:
                entered.enter_context(torch.autocast(*node.args))  # type: ignore[arg-type] # Dynamo's
        yield


def is_recorded(place: Node) -> bool:
    """Return whether gradients are recorded where a node of Dynamo's graph stands."""
    switches = _before(place, torch._C._set_grad_enabled)  # noqa: SLF001 (Dynamo's)
    return bool(switches[-1].args[0]) if switches else torch.is_grad_enabled()


def _before(place: Node, target: Callable[..., Any]) -> list[Node]:
    found = place.graph.find_nodes(op="call_function", target=target)
    return [x for x in found if x < place]


def key_of(node: Node) -> str:
    """Return the name of a node's value in its metadata, or of its graph's where it has none."""
    one = node if value_of(node) is not None else next(iter(node.graph.nodes))
    return "val" if "val" in one.meta else "example_value"


def carry(node: Node, like: Node) -> None:
    """Copy a node's provenance to the one that replaces it."""
    node.meta |= provenance(like)


def provenance(node: Node) -> dict[str, Any]:
    """Return the metadata that a replacement of a node has: a copy, since torch may change it."""
    return {name: copy.copy(node.meta[name]) for name in CARRIED if name in node.meta}


def evaluated(node: Node, others: Mapping[Node, Any] | None = None) -> Any:
    """Return the value that a call would have, if others had other values than they have.

    None where the values are not known.
    """
    with state_at(node):
        return _evaluated(node, others or {})


def _evaluated(node: Node, known: Mapping[Node, Any]) -> Any:
    arguments = torch.fx.map_arg(
        (node.args, node.kwargs), lambda x: known[x] if x in known else value_of(x)
    )
    return computed(call_fake, node, *arguments)


def computed(
    function: Callable[..., Any], *arguments: Any, mode: FakeTensorMode | None = None
) -> Any:
    """Call a function with fake values.

    Args:
        function: what to call.
        arguments: its own.
        mode: of the graph's fake values, where there may be none among the arguments. Without it
            the result is then None.
    """
    leaves = pytree.tree_leaves(arguments)
    mode = fake_mode(leaves) or mode
    if mode is None:
        return None
    # Symbols as Dynamo has them: operators in C++ would ask for sizes as numbers, and guard on the
    # answers. Those in Python take several times as long.
    symbolic = any(map(is_symbolic, leaves))
    with mode, enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        return function(*arguments)


def refresh(old: Node, new: Node) -> None:
    """Refresh the values of what views a node that has taken another's place.

    Otherwise a later pass sees two memories where there is one: of ``new``, and of the views.
    """
    if value_of(new) is value_of(old):
        return
    for user in list(new.users):
        _refresh(user, storages(old))


def storages(node: Any) -> frozenset[int] | None:
    """Return the storages of a node's tensors; ``None`` where its value is not known."""
    value = value_of(node)
    if value is None:
        return None
    tensors = tensors_in(value)
    if any(x.layout != torch.strided or _is_transformed(x) for x in tensors):
        return None
    return frozenset(x.untyped_storage()._cdata for x in tensors)  # noqa: SLF001 (its identity)


def _refresh(node: Node, stale: frozenset[int] | None) -> None:
    if stale is None or stale.isdisjoint(storages(node) or ()):
        return
    propagate(node, node)
    for user in node.users:
        _refresh(user, stale)


def call(node: Node, arguments: Any, keywords: Any) -> Any:
    """Return what a call gives, of a function or method, with other arguments."""
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **keywords)
    return node.target(*arguments, **keywords)  # type: ignore[operator] # of a call_function


def call_fake(node: Node, arguments: Any, keywords: Any) -> Any:
    """Return what a call gives of fake values; of calls that are alike, operators compute one."""
    leaves = pytree.tree_leaves((arguments, keywords)) if is_cached(node.target) else ()
    mode = fake_mode(leaves)
    if mode is None:
        return call(node, arguments, keywords)
    return call_cached(node.target, arguments, keywords, mode)  # type: ignore[arg-type] # it is one


def is_symbolic(value: Any) -> bool:
    """Return whether a value is a number, or has sizes, that only a run tells."""
    if isinstance(value, torch.Tensor):
        return bool(value._has_symbolic_sizes_strides)  # noqa: SLF001 (no other)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def fake_mode(values: Iterable[Any]) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor among values, or None."""
    # Not torch's detect_fake_mode: while a backend runs, Dynamo has a new mode ready for it, and
    # the values in its graph are of the one before.
    return next((x.fake_mode for x in values if isinstance(x, FakeTensor)), None)


_SOURCES = "_param_name_to_source"


def say_sources(old: GraphModule, new: GraphModule) -> None:
    """Copy where a graph of Dynamo's has its inputs from; inputs that are new have no source.

    Nothing that copies a graph copies that. Without it a graph is taken for an exported one, of
    which no input stays where it is: CUDA graphs then copy every parameter in every call.
    """
    new.meta = dict(old.meta)
    if not hasattr(old, _SOURCES):
        return
    setattr(new, _SOURCES, getattr(old, _SOURCES))
    known = {n.target: n for n in old.graph.nodes if n.op == "placeholder"}
    for node in new.graph.nodes:
        if node.op == "placeholder":
            node._dynamo_source = getattr(known.get(node.target), "_dynamo_source", None)  # noqa: SLF001 (torch's own)
