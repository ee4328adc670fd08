"""What runs one region of a graph on a foreign engine: built for each size that it is called with.

What a region's inputs and results have and an engine's have not is dealt with here: results that
are None, numbers or inputs as they were; strides; memory that an engine hands out twice.
"""

import contextlib
import operator
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import tracing
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from backbay import compile_log
from backbay.causes import one_line
from backbay.errors import BackbayError
from backbay.graph.region import digest, taken_out
from backbay.graph.report import first_line, target_name, user_line
from backbay.graph.specialisation import specialised
from backbay.graph.values import is_symbolic, value_of
from backbay.kit.aot import GraphKind
from backbay.kit.codegen import Compiled, aten_level
from backbay.kit.exchange import as_tensor, laid_out, overlapping
from backbay.kit.program import Program

if TYPE_CHECKING:
    from backbay.kit.engine import Engine

_SEARCH_S = 30.0
"""In which the operator that an engine can't compile is looked for."""


class Region:
    """A region, and what was built of it for the sizes that it was called with."""

    def __init__(
        self,
        engine: "Engine",
        graph_module: GraphModule,
        kind: GraphKind,
        options: Mapping[str, Any],
    ) -> None:
        self._engine = engine
        self._graph_module = graph_module
        self._kind = kind
        self._options = options
        self._made = dict[Any, Compiled]()
        self._lock = threading.Lock()
        self._rest: Compiled | None = None

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run it, and build it before where these sizes are new."""
        sizes = tuple(
            (x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in arguments
        )
        run = self._made.get(sizes) or self._rest
        if run is None:
            with self._lock:
                run = self._made.get(sizes) or self._rest or self._next(sizes, arguments)
        made: Sequence[Any] = run(*arguments)
        return made

    def _next(self, sizes: Any, arguments: Sequence[Any]) -> Compiled:
        if len(self._made) < self._engine.most_sizes:
            self._made[sizes] = self.built(arguments)
            return self._made[sizes]
        name, fallback = self._engine.__name__, self._engine.fallback
        compile_log.note(
            compile_log.Record(
                asked=name,
                ran=fallback,
                why=f"{self._kind} graph: {name} has built a region for {len(self._made)} sizes, "
                f"and {fallback} runs all others",
                fell_back=True,
                owned=0,
            )
        )
        fakes = [value_of(x) for x in self._graph_module.graph.find_nodes(op="placeholder")]
        rest = aten_level(fallback, self._engine.registry)(self._graph_module, fakes)
        self._rest = lambda *arguments: rest(list(arguments))
        return self._rest

    def built(self, arguments: Sequence[Any]) -> Compiled:
        """Return what runs the region for inputs of these sizes.

        Raises:
            BackbayError: the engine can't build it.
        """
        with _outside_of_tracing():
            graph_module = _for_sizes(self._graph_module, arguments)
            dense = self._engine.dense_inputs
            plan = _Plan.of(graph_module, arguments, dense=dense)
            if not plan.layouts:
                return lambda *given: plan.results(given, ())
            program = Program(graph_module, self._kind, self._options, self._engine.made_by)
            try:
                run = self._engine.build(program)
            except BackbayError:
                raise
            except Exception as error:
                raise _failed(self._engine, program, error) from error
        shares = self._engine.shares_results
        one_at_a_time = threading.Lock()

        def call(*given: Any) -> list[Any]:
            with one_at_a_time:
                return plan.results(given, run(*plan.taken(given)), copied=shares)

        return call


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a region's inputs and results lie among those of the program that is built of it."""

    tensors: tuple[int, ...]
    """Which inputs the program has: tensors that it reads."""
    sources: tuple[tuple[str, Any], ...]
    """Of each result of the region: ``engine`` and a number, ``input`` and a number, or ``as it
    is`` and a value."""
    layouts: tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]
    """Of each result of the program: dtype, shape and strides, as eager's."""
    dense: bool
    """Whether the program's inputs are contiguous."""

    @classmethod
    def of(cls, graph_module: GraphModule, arguments: Sequence[Any], *, dense: bool) -> "_Plan":
        """Make the plan, and strip the graph of all that the program has not."""
        graph = graph_module.graph
        (output,) = graph.find_nodes(op="output")
        given = [n for n, x in enumerate(arguments) if isinstance(x, torch.Tensor)]
        placeholders = dict(zip(graph.find_nodes(op="placeholder"), given, strict=True))
        computed: dict[Node, int] = {}
        sources: list[tuple[str, Any]] = []
        for result in pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None):
            if not isinstance(result, Node):
                sources.append(("as it is", result))
            elif result in placeholders:
                sources.append(("input", placeholders[result]))
            elif result.op == "get_attr":
                sources.append(("as it is", graph_module.get_buffer(str(result.target))))
            else:
                sources.append(("engine", computed.setdefault(result, len(computed))))
        output.args = (tuple(computed),)
        graph.eliminate_dead_code()
        for node in (x for x in placeholders if not x.users):
            graph.erase_node(node)
        graph_module.recompile()
        layouts = [(x.dtype, x.shape, x.stride()) for x in map(value_of, computed)]
        read = graph.find_nodes(op="placeholder")
        for node in read if dense else ():
            node.meta["val"] = value_of(node).contiguous()
        return cls(tuple(placeholders[x] for x in read), tuple(sources), tuple(layouts), dense)

    def taken(self, given: Sequence[Any]) -> Iterator[torch.Tensor]:
        """Return what the program takes of a region's inputs, without their gradients' record."""
        tensors = (given[x].detach() for x in self.tensors)
        return (x.contiguous() for x in tensors) if self.dense else tensors

    def results(
        self, given: Sequence[Any], made: Sequence[Any], *, copied: bool = False
    ) -> list[Any]:
        """Return a region's results from its inputs and from what the program made.

        Raises:
            BackbayError: the engine gave another number of results, dtype or shape.
        """
        if len(made) != len(self.layouts):
            raise BackbayError(
                f"the engine gave {len(made)} results where the graph has {len(self.layouts)}"
            )
        tensors = list(map(_laid_out, made, self.layouts))
        # An engine may hand out (a part of) an input for what only copies it, or one buffer twice.
        shared = overlapping([given[x] for x in self.tensors], tensors)
        for number, (tensor, value) in enumerate(zip(tensors, made, strict=True)):
            if number in shared or (copied and _same_memory(tensor, value)):
                tensors[number] = tensor.clone()
        places = {"engine": tensors, "input": given}
        return [x if place == "as it is" else places[place][x] for place, x in self.sources]


def _laid_out(value: Any, layout: tuple[torch.dtype, torch.Size, tuple[int, ...]]) -> torch.Tensor:
    dtype, shape, strides = layout
    tensor = as_tensor(value, dtype)
    if tensor.shape != shape:
        raise BackbayError(
            f"the engine gave shape {list(tensor.shape)} where the graph has {list(shape)}"
        )
    return laid_out(tensor, strides)


def _same_memory(tensor: torch.Tensor, value: Any) -> bool:
    other = value if isinstance(value, torch.Tensor) else as_tensor(value, tensor.dtype)
    return tensor.data_ptr() == other.data_ptr()


def _for_sizes(graph_module: GraphModule, arguments: Sequence[Any]) -> GraphModule:
    if any(not isinstance(x, torch.Tensor) or is_symbolic(x) for x in arguments):
        return specialised(graph_module, arguments)
    values = [value_of(x) for x in graph_module.graph.nodes]
    if any(map(is_symbolic, pytree.tree_leaves(values))):
        return specialised(graph_module, arguments)
    graph = Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return GraphModule(graph_module, graph)


@contextlib.contextmanager
def _outside_of_tracing() -> Iterator[None]:
    """Have an engine's own tracing see nothing of the compilation that asks for it."""
    with _disable_current_modes(), tracing(None), torch.no_grad():
        yield


def _failed(engine: "Engine", program: Program, error: Exception) -> BackbayError:
    name, place = engine.engine or engine.__name__, first_line(program.graph_module.graph)
    # What is not installed fails with any operator.
    found = None if isinstance(error, ImportError) else _culprit(engine, program)
    if found is None:
        return BackbayError(
            f"{name} can't compile this {program.kind} graph: {one_line(error)} "
            f"(the graph of {place})"
        )
    node, alone = found
    return BackbayError(
        f"{name} can't compile {target_name(node)} in this {program.kind} graph: "
        f"{one_line(alone)} ({user_line(node) or f'the graph of {place}'})"
    )


def _culprit(engine: "Engine", program: Program) -> tuple[Node, Exception] | None:
    """Return the first operator that the engine can't build by itself either, and its error.

    Engines seldom name it, or by names of their own. After half a minute it is not known.
    """
    last, seen = time.monotonic() + _SEARCH_S, set[str]()
    for node in program.graph_module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        alone = taken_out([node, *(x for x in node.users if x.target is operator.getitem)])
        known = digest(alone.graph)
        if known in seen:
            continue
        if time.monotonic() > last:
            return None
        seen.add(known)
        try:
            engine.build(replace(program, graph_module=alone))
        except Exception as error:  # noqa: BLE001 (any error is what is looked for)
            return node, error
    return None
