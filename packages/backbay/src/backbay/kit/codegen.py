"""What turns a graph into code: a registered backend by name, at either level."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

from backbay.graph.values import fake_mode
from backbay.kit.passes import Pass
from backbay.registry import Registry, default_registry
from backbay.registry.registry import current_registry

EAGER = frozenset({"eager", "aot_eager"})
"""Backends that run a graph of ATen operators as it is."""
_MARK = "passes of backbay"
_MINIFIER = "torch._dynamo.repro.after_dynamo"
_BACKENDS = ("dynamo_minifier_backend", "dynamo_accuracy_minifier_backend")
Compiled = Callable[..., Any]
Codegen = Callable[[GraphModule, Sequence[Any]], Compiled]
"""Takes a graph module and its example inputs; gives what runs it. Results are a tuple or list."""


def registry_in_use() -> Registry:
    """Return the registry that the backend which is compiling was looked up in.

    `ConfiguredBackend` says which, for the time of a call; else it is the default one.
    """
    return current_registry.get() or default_registry


def torch_level(
    name: str, mode: str | None, options: dict[str, Any] | None, registry: Registry | None = None
) -> Codegen:
    """Return a code generator for Dynamo's graphs: any registered backend.

    Raises:
        InputError: nobody knows the name, or it does not run here.
    """
    return (registry or registry_in_use()).get_backend(name, mode=mode, options=options)


def keyed(generate: Codegen, passes: Sequence[Pass]) -> Codegen:
    """Compile with the digests of passes added to the keys of Inductor's caches.

    They know a graph, and the Triton kernels that its operators call; not what else an operator is
    made of that a pass put in. When its source changed, they served what it was before.
    """
    if not passes:
        return generate
    key = "".join(x.uuid() for x in passes)

    def run(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

        # Settings count in keys; this one has names of functions that may be cached, with keys, and
        # none is called so. Not torch.compiler's cache_key_tag: what Triton's autotuning finds is
        # kept by it, too, in processes and at times that know nothing of a tag that is set here;
        # so nothing was found again, and each process timed every kernel anew.
        known = {**config.unsafe_marked_cacheable_functions, _MARK: key}
        with config.patch(unsafe_marked_cacheable_functions=known):
            return generate(graph_module, example_inputs)

    return run


def aten_level(name: str, registry: Registry | None = None) -> Codegen:
    """Return a code generator for graphs that AOTAutograd has made; what it gives is boxed.

    ``eager`` and ``aot_eager`` run the graph as it is. Any other backend is handed the graph as if
    it were Dynamo's, with fake inputs and without gradients. For passes before Inductor there is a
    better way, its own hooks: see `aot.py`.

    Raises:
        InputError: nobody knows the name, or it does not run here.
    """
    return (
        _as_it_is if name in EAGER else _Nested((registry or registry_in_use()).get_backend(name))
    )


def _as_it_is(graph_module: GraphModule, _: Sequence[Any]) -> Compiled:
    return boxed(graph_module.forward)


class _Nested:
    """A backend that is called while AOTAutograd compiles."""

    def __init__(self, codegen: Codegen) -> None:
        self._codegen = codegen

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        with torch.no_grad(), nested_tracing(example_inputs):
            compiled = self._codegen(graph_module, example_inputs)
        # Dynamo calls what a backend gives with positional arguments, whatever mark it carries:
        # AOTAutograd copies the mark of a boxed function to one that is not.
        return _boxing(compiled)


@contextlib.contextmanager
def nested_tracing(example_inputs: Sequence[Any]) -> Iterator[None]:
    """Compile another graph of the same inputs while one is compiled.

    What AOTAutograd knows of the outer graph is kept in torch's context, and would be taken for
    knowledge of this one. What it found out of the inputs holds for both.
    """
    from torch._guards import (  # noqa: PLC0415 (as Dynamo, with the rest of the compiler)
        TracingContext,
        tracing,
    )

    outer = TracingContext.try_get()
    inner = TracingContext(fake_mode(example_inputs) or FakeTensorMode())
    with tracing(inner):
        yield
    if outer is not None:
        outer.guards_context.aotautograd_guards += inner.guards_context.aotautograd_guards


def boxed(compiled: Compiled) -> Compiled:
    """Return a callable that takes its arguments as one list, as AOTAutograd calls it."""
    return compiled if getattr(compiled, "_boxed_call", False) else _boxing(compiled)


def _boxing(compiled: Compiled) -> Compiled:
    from torch._functorch._aot_autograd.utils import (  # noqa: PLC0415 (imports Dynamo)
        make_boxed_func,
    )

    made: Compiled = make_boxed_func(_direct(compiled))
    return made


def _direct(compiled: Compiled) -> Compiled:
    """Return a graph's forward itself, not the one that first asks whether its code has been made.

    Dynamo's graphs make their code when they are called, and such a forward, once kept, goes the
    long way round at every call: 2.5 µs (``benchmarks/overhead.py``).
    """
    owner = getattr(compiled, "__self__", None)
    if not isinstance(owner, GraphModule) or compiled != owner.forward:
        return compiled
    _LazyGraphModule.force_recompile(owner)
    forward: Compiled = owner.forward
    return forward


class _Module(torch.nn.Module):
    """Compiled code, as a module without parameters: Dynamo made them inputs."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self._compiled = (compiled,)  # in a tuple: a module in here has no say

    def forward(self, *arguments: Any) -> Any:
        return self._compiled[0](*arguments)


def minifiable(compiled: Compiled) -> Compiled:
    """Return compiled code as a module if torch's minifier called for it; else as it is.

    After Dynamo, the minifier calls what a backend gives, and reads its parameters as a module's;
    and it hands all arguments as one list to what says that it is boxed, as AOTAutograd's does and
    is not. From torch 2.11 to 2.15 it so takes every graph for broken that torch's own ``eager``,
    ``aot_eager`` and ``inductor`` compile. A module suits it. That costs a call, so it is not made
    otherwise.
    """
    from torch._dynamo import config  # noqa: PLC0415 (imports Dynamo)

    if config.repro_after != "dynamo" and not _minifying(sys._getframe(1)):  # noqa: SLF001
        return compiled
    return _Module(compiled)


def _minifying(frame: FrameType | None) -> bool:
    """Whether a backend of the minifier's is calling; the script that it runs in says not."""
    while frame is not None:
        if frame.f_code.co_name in _BACKENDS and frame.f_globals.get("__name__") == _MINIFIER:
            return True
        frame = frame.f_back
    return False
