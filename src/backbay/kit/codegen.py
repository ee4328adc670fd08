"""What turns a graph into code: a registered backend by name, at either level."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from backbay.registry import default_registry

Compiled = Callable[..., Any]
Codegen = Callable[[GraphModule, Sequence[Any]], Compiled]
"""Takes a graph module and its example inputs; gives what runs it. Results are a tuple or list."""


def torch_level(name: str, mode: str | None, options: dict[str, Any] | None) -> Codegen:
    """Give a code generator for Dynamo's graphs: any registered backend.

    Raises:
        InputError: nobody knows the name, or it does not run here.
    """
    return default_registry.get_backend(name, mode=mode, options=options)


def keyed(generate: Codegen, key: str) -> Codegen:
    """Compile with a key added to those of Inductor's caches.

    They know a graph, and the Triton kernels that its operators call; not what else such an
    operator is made of. When its source changed, they served what it was before.
    """
    if not key:
        return generate

    def run(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        from torch.compiler import config  # noqa: PLC0415 (imports Dynamo)

        tag = f"{config.cache_key_tag}{key}"
        with config.patch(cache_key_tag=tag):  # type: ignore[attr-defined] # made at run time
            return generate(graph_module, example_inputs)

    return run


def aten_level(name: str) -> Codegen:
    """Give a code generator for graphs that AOTAutograd has made; what it gives is boxed.

    ``eager`` and ``aot_eager`` run the graph as it is. Any other backend is handed the graph as if
    it were Dynamo's; Inductor is not called this way, see `aot.py`.
    """
    if name in {"eager", "aot_eager"}:
        return _as_it_is
    return _Boxing(default_registry.lookup_backend(name))


def _as_it_is(graph_module: GraphModule, _: Sequence[Any]) -> Compiled:
    return boxed(graph_module.forward)


class _Boxing:
    """A backend whose compiled functions are boxed for AOTAutograd."""

    def __init__(self, codegen: Codegen) -> None:
        self._codegen = codegen

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return boxed(self._codegen(graph_module, example_inputs))


def boxed(compiled: Compiled) -> Compiled:
    """Give a callable that takes its arguments as one list, as AOTAutograd calls it."""
    from torch._functorch._aot_autograd.utils import (  # noqa: PLC0415 (imports Dynamo)
        make_boxed_func,
    )

    if getattr(compiled, "_boxed_call", False):
        return compiled
    made: Compiled = make_boxed_func(compiled)
    return made
