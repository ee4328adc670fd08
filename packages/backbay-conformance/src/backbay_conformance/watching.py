"""A backend under watch: which graphs it was given, what it made of them, and whether that ran."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch

from backbay import compile_log
from backbay.registry import CompilerFn
from backbay_conformance.ownership import Ownership, work_of

_EMPTY = CellType()
"""Of a closure whose variable has no value yet."""


@dataclass(kw_only=True)
class Graph:
    """The ownership report of one graph."""

    nodes: int
    """Operators in it: calls of functions, methods and modules."""
    as_it_was: bool = False
    """Whether the backend gave the graph module back unchanged, or its own forward."""
    ran_on: str | None = None
    """The backend that compiled it, where the compile log says that it was another one."""
    runs: int = 0
    """How often the compiled code was called."""
    example_inputs: Sequence[Any] = ()
    """What the backend was given beside it; fake or real."""
    owned: Ownership | None = None
    """What the compiled code does itself, of the last run in a `Watched.measuring` block."""

    @property
    def fell_back(self) -> bool:
        """Whether nothing of the backend is in what runs."""
        return self.as_it_was or self.ran_on is not None


class Watched:
    """A compiler function that passes everything on to a backend, and keeps a report per graph.

    One object for each case: Dynamo takes another object for another backend.
    """

    def __init__(self, compiler: CompilerFn, *, name: str) -> None:
        self.compiler = compiler
        self.graphs: list[Graph] = []
        self._measures = False
        self.__name__ = f"watched_{name}"

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        """Compile with the backend, and note what came of it."""
        nodes = sum(x.op.startswith("call_") for x in graph_module.graph.nodes)
        graph = Graph(nodes=nodes, example_inputs=tuple(example_inputs))
        self.graphs.append(graph)  # before it compiles: a backend that raises was given a graph
        original = torch.fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
        before = len(compile_log.records())
        compiled = self.compiler(graph_module, example_inputs, **options)
        graph.as_it_was = is_graph_itself(compiled, graph_module) and (
            _written(graph_module.graph) == _written(original.graph)
        )
        graph.ran_on = next((x.ran for x in compile_log.records()[before:] if x.fell_back), None)
        counted = _marked(self._counted(compiled, graph, original), compiled)
        return counted if callable(compiled) else compiled

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Find out of every graph that runs in a block how much of it the backend does itself.

        Compile before: a graph that is compiled under the mode that counts would be another.
        """
        self._measures = True
        try:
            yield
        finally:
            self._measures = False

    def _counted(
        self, compiled: Callable[..., Any], graph: Graph, original: torch.fx.GraphModule
    ) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            graph.runs += 1
            if not self._measures:
                return compiled(*args)
            in_one = len(args) == 1 and isinstance(args[0], list)
            inputs = args[0] if in_one else args  # copied before a boxed call empties it
            wanted = work_of(original, [_own(x) for x in inputs])[1]
            result, done = work_of(compiled, args)
            graph.owned = Ownership(graph=wanted, dispatched=done)
            return result

        return counted

    def reset(self) -> None:
        """Hand Dynamo's reset on, where the backend takes one."""
        reset = getattr(self.compiler, "reset", None)
        if reset is not None:
            reset()


def _written(graph: torch.fx.Graph) -> list[str]:
    return [f"{x.name} {x.op} {x.target} {x.args} {x.kwargs}" for x in graph.nodes]


def _marked(counted: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Put on a function the name and the marks of what it calls, those of a boxed call too."""
    functools.update_wrapper(counted, compiled, updated=())
    if getattr(compiled, "_boxed_call", False):
        counted._boxed_call = True  # type: ignore[attr-defined] # noqa: SLF001 (torch's protocol)
    return counted


def _own(value: Any) -> Any:
    """Return a copy that may be changed; that it requires grad as well matters to what runs."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        copied = value.detach().clone()
    # No leaf: a program may change its inputs in place.
    return copied.requires_grad_().view_as(copied) if value.requires_grad else copied


def is_graph_itself(compiled: Any, graph_module: torch.fx.GraphModule) -> bool:
    """Whether what a backend returned is the graph module that it was given, run as it is."""
    if compiled is graph_module:
        return True
    if isinstance(compiled, functools.partial):
        return is_graph_itself(compiled.func, graph_module)
    owner = getattr(compiled, "__self__", None)
    if type(owner) is torch.fx.Interpreter:  # a subclass may do something of its own
        owner = owner.module
    if owner is None:
        boxed = getattr(compiled, "_boxed_call", False)
        cells = getattr(compiled, "__closure__", None) or ()
        held = [x.cell_contents for x in cells if x != _EMPTY]
        return boxed and any(is_graph_itself(x, graph_module) for x in held)
    return owner is graph_module
