"""A backend under watch: which graphs it was given, what it made of them, and whether that ran."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backbay import ledger
from backbay.registry import CompilerFn

_RUNS_IT = {"forward", "__call__", "run", "boxed_run"}
"""Methods of a graph module, or of an interpreter, that run the graph as it is."""


@dataclass(kw_only=True)
class Graph:
    """The ownership report of one graph."""

    nodes: int
    """Operators in it: calls of functions, methods and modules."""
    as_it_was: bool = False
    """Whether the backend gave the graph module back, or its own forward."""
    ran_on: str | None = None
    """The backend that compiled it, where the ledger says that it was another one."""
    runs: int = 0
    """How often the compiled code was called."""
    example_inputs: Sequence[Any] = ()
    """What the backend was given beside it; fake or real."""

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
        self.__name__ = f"watched_{name}"

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        """Compile with the backend, and note what came of it."""
        nodes = sum(x.op.startswith("call_") for x in graph_module.graph.nodes)
        graph = Graph(nodes=nodes, example_inputs=tuple(example_inputs))
        self.graphs.append(graph)  # before it compiles: a backend that raises was given a graph
        before = len(ledger.records())
        compiled = self.compiler(graph_module, example_inputs, **options)
        graph.as_it_was = is_graph_itself(compiled, graph_module)
        graph.ran_on = next((x.ran for x in ledger.records()[before:] if x.fell_back), None)
        return _counted(compiled, graph) if callable(compiled) else compiled

    def reset(self) -> None:
        """Hand Dynamo's reset on, where the backend takes one."""
        reset = getattr(self.compiler, "reset", None)
        if reset is not None:
            reset()


def _counted(compiled: Callable[..., Any], graph: Graph) -> Callable[..., Any]:
    @functools.wraps(compiled, updated=())  # with the marks of a boxed call
    def counted(*args: Any) -> Any:
        graph.runs += 1
        return compiled(*args)

    if getattr(compiled, "_boxed_call", False):
        counted._boxed_call = True  # type: ignore[attr-defined] # noqa: SLF001 (torch's protocol)
    return counted


def is_graph_itself(compiled: Any, graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether what a backend returned is the graph module that it was given, run as it is."""
    if compiled is graph_module:
        return True
    if isinstance(compiled, functools.partial):
        return is_graph_itself(compiled.func, graph_module)
    owner = getattr(compiled, "__self__", None)
    if owner is None:
        boxed = getattr(compiled, "_boxed_call", False)
        cells = getattr(compiled, "__closure__", None) or ()
        return boxed and any(is_graph_itself(_content(x), graph_module) for x in cells)
    if isinstance(owner, torch.fx.Interpreter):
        owner = owner.module
    return owner is graph_module and compiled.__name__ in _RUNS_IT


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return None
