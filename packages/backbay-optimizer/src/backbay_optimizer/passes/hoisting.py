"""A graph's call of what only parameters decide: taken out, and made again when one has changed.

A pass puts the call in; here it is taken out before code is generated, its results become further
inputs, and what is compiled is wrapped. At each call the wrapper asks whether its parameters are
what they were: the same tensors, in the same memory, of the same version. Where they are not, the
results are computed anew and copied into the tensors that hold them, so that a CUDA graph which has
their addresses stays valid.

What counts no version is not seen: a write through ``.data``, or through a tensor that was made
from ``.data``, which has a counter of its own.

It is no operator that remembers its result: a code generator may use the memory of a result again
as soon as nothing in the graph reads it.
"""

import copy
import functools
import operator
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from backbay.graph.rewrite import layout
from backbay.graph.values import say_sources, value_of
from backbay.kit.codegen import Codegen, Compiled

HOISTED = "_hoisted"
"""The submodule of a graph that computes what is hoisted, from the graph's inputs."""

Tensors = Sequence[torch.Tensor]
Key = tuple[int, ...]
"""Which tensors: by their identities, while they are there."""


def put_call(
    graph_module: GraphModule, hoisted: GraphModule, sources: Sequence[Node], ends: Sequence[Node]
) -> None:
    """Call a module before all else in a graph, and use its results where the graph made them.

    Args:
        graph_module: Dynamo's graph.
        hoisted: takes the sources, and gives a tuple with a result for each end.
        sources: inputs of the graph.
        ends: nodes of the graph; they are left without users.
    """
    graph = graph_module.graph
    graph_module.add_submodule(HOISTED, hoisted)
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        call = graph.call_module(HOISTED, tuple(sources))
        call.meta["example_value"] = tuple(map(value_of, ends))
        for number, end in enumerate(ends):
            result = graph.call_function(operator.getitem, (call, number))
            result.meta = dict(end.meta)
            end.replace_all_uses_with(result)


def compile_apart(
    generate: Codegen, graph_module: GraphModule, example_inputs: Sequence[Any]
) -> Compiled:
    """Generate code for a graph; what it hoists is computed beside it.

    Args:
        generate: the code generator.
        graph_module: Dynamo's graph; it is left as it is: Dynamo reads its inputs once more.
        example_inputs: its inputs. Where parameters among them are no tensors with numbers in them,
            or what is hoisted comes out otherwise than promised, it is left in the graph.
    """
    call = next((x for x in graph_module.graph.nodes if x.target == HOISTED), None)
    if call is None:
        return generate(graph_module, example_inputs)
    inputs = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    positions = [inputs.index(x) for x in call.all_input_nodes]
    given = [example_inputs[x] for x in positions]
    if not _is_seen_to_change(given):
        return generate(graph_module, example_inputs)
    made = _Kept(graph_module.get_submodule(HOISTED), positions, given)
    kept = made.among(example_inputs)
    if [layout(x) for x in kept] != [layout(x) for x in value_of(call)]:
        return generate(graph_module, example_inputs)
    main = _without_call(graph_module)
    with _of_numbers(kept):
        compiled = generate(main, [*example_inputs, *kept])

    def run(*arguments: Any) -> Any:
        return compiled(*arguments, *made.among(arguments))

    return run


def _without_call(graph_module: GraphModule) -> GraphModule:
    """Return a graph with the results of the call as inputs, after the others."""
    graph = copy.deepcopy(graph_module.graph)
    call = next(x for x in graph.nodes if x.target == HOISTED)
    results = {x.args[1]: x for x in call.users}
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    for number, value in enumerate(value_of(call)):
        with graph.inserting_after(last):
            last = graph.placeholder(f"{HOISTED}_{number}")
        last.meta["example_value"] = value
        # What AOTAutograd reads: CUDA graphs take the address as it is, and copy nothing.
        last.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}
        if number in results:
            results[number].replace_all_uses_with(last)
            graph.erase_node(results[number])
    graph.erase_node(call)
    main = GraphModule(graph_module, graph)
    say_sources(graph_module, main)
    return main


@contextmanager
def _of_numbers(kept: Tensors) -> Iterator[None]:
    """Have the compiler take these tensors' sizes for numbers, also where shapes are dynamic."""
    context = torch._guards.TracingContext.try_get()  # noqa: SLF001 (its only home)
    mode = context.fake_mode if context is not None else None
    # A mode remembers what it made of a tensor, for as long as somebody has that.
    remembered = [mode.from_tensor(x, static_shapes=True) for x in kept] if mode else []
    yield
    remembered.clear()


def _is_seen_to_change(given: Sequence[Any]) -> bool:
    """Whether versions of these are counted: not of tensors of inference, nor of others'."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return all(type(x) in plain and not x.is_inference() for x in given)


class _State:
    """What some tensors were, as far as it can be seen without reading their numbers."""

    def __init__(self, given: Tensors) -> None:
        self._versions = [x._version for x in given]  # noqa: SLF001 (nothing else has it)
        self._addresses = [x.data_ptr() for x in given]
        watched: Any = StorageWeakRef  # torch has no stub
        self._memory = [watched(x.untyped_storage()) for x in given]
        self._held = [x.cdata for x in self._memory]

    def holds(self, given: Tensors) -> bool:
        """Whether the tensors, the same objects, are what they were."""
        return (
            [x._version for x in given] == self._versions  # noqa: SLF001 (as above)
            and [x.data_ptr() for x in given] == self._addresses
            # Other memory may have the address of memory that is gone, and of no other.
            and not any(map(torch.UntypedStorage._expired, self._held))  # noqa: SLF001 (as above)
        )


@dataclass(slots=True)
class _Results:
    """What was made of some parameters, and of which state of them."""

    kept: Tensors
    state: _State
    watching: "Sequence[weakref.ref[torch.Tensor]]"
    """Notices when one of the parameters is gone."""


class _Kept:
    """What is hoisted of a graph, for each set of parameters that it is called with.

    Modules of one class may share a compiled graph. Each has results of its own, which last as long
    as its parameters: so what is kept is in proportion to the parameters that there are.
    """

    def __init__(self, compute: torch.nn.Module, positions: Sequence[int], given: Tensors) -> None:
        self._compute = compute
        self._positions = positions
        self._is_on_cuda = any(x.is_cuda for x in given)
        self._known: dict[Key, _Results] = {}
        self._lock = threading.Lock()

    def among(self, arguments: Sequence[Any]) -> Tensors:
        """Return what is hoisted, of the parameters among a graph's arguments as they are now."""
        given = [arguments[x] for x in self._positions]
        found = self._known.get(tuple(map(id, given)))  # none has the identity of one that is gone
        if found is not None and found.state.holds(given):
            return found.kept
        # What a CUDA graph of the caller's computes is not there before that is replayed.
        captured = self._is_on_cuda and torch.cuda.is_current_stream_capturing()
        if captured or not _is_seen_to_change(given):
            return self._computed(given)
        with self._lock:
            return self._refreshed(given)

    def _refreshed(self, given: Tensors) -> Tensors:
        key = tuple(map(id, given))
        found = self._known.get(key)
        if found is not None and found.state.holds(given):  # another thread was first
            return found.kept
        state = _State(given)  # before they are read: what is written meanwhile is seen next time
        computed = self._computed(given)
        if found is None:
            forget = functools.partial(_forget, weakref.ref(self), key)
            found = _Results(computed, state, [weakref.ref(x, forget) for x in given])
        else:
            with torch.inference_mode(mode=False), torch.no_grad():
                for old, new in zip(found.kept, computed, strict=True):
                    old.copy_(new)
        # The next call may be in another stream, and has no reason to wait for this one.
        if self._is_on_cuda:
            torch.cuda.current_stream(computed[0].device).synchronize()
        found.state = state
        self._known[key] = found
        return found.kept

    def _computed(self, given: Tensors) -> Tensors:
        # Not in inference mode: a tensor that is made there can be written nowhere else.
        with _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad():
            results: Tensors = self._compute(*given)
        return results


def _forget(kept: "weakref.ref[_Kept]", key: Key, _: "weakref.ref[torch.Tensor]") -> None:
    """Drop what was made of tensors of which one is gone; nothing is kept alive to do that."""
    found = kept()
    if found is not None:
        found._known.pop(key, None)  # noqa: SLF001 (of this file)
