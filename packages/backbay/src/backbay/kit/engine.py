"""A backend that hands graphs to another compiler, with a runtime of its own: a foreign engine.

An author names the engine's distribution, says which operators it takes, and writes ``build``. What
AOTAutograd's graphs have and engines have not is dealt with here: results that are None, numbers or
inputs; symbols; strides; constants; what is kept on disk.
"""

import contextlib
import functools
import hashlib
import inspect
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch._guards import tracing
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from backbay import compile_log
from backbay.causes import one_line
from backbay.errors import BackbayError, InputError
from backbay.graph.aliases import returned_views
from backbay.graph.effects import is_random, mutates
from backbay.graph.partition import RETURNED_VIEW, supports_operators
from backbay.graph.region import digest, taken_out
from backbay.graph.report import first_line, target_name, user_line
from backbay.graph.specialisation import specialised
from backbay.graph.values import are_numbers, is_symbolic, tensors_in, value_of
from backbay.kit.aot import GraphKind
from backbay.kit.backend import Backend
from backbay.kit.codegen import Codegen, Compiled, aten_level
from backbay.kit.decompositions import core_aten
from backbay.kit.exchange import as_tensor, laid_out
from backbay.kit.program import Program
from backbay.registry import Option

if TYPE_CHECKING:
    from backbay.kit.partition import Partition

SYMBOLS = ("specialise", "elsewhere")
FREEZE = Option(
    name="freeze",
    type="bool",
    default=False,
    help="in inference, parameters are constants that the engine can fold; later changes go unseen",
)
_FLOATS = (torch.float32,)
_ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
_RETURNED = "backbay_returned_view"
_SEARCH_S = 30.0
_REST = (torch.int64, torch.int32, torch.bool)


class Engine(Backend):
    """A backend of torch.compile that another compiler and its runtime stand behind.

    ::

        class MyEngine(Engine):
            engine = "my-runtime"
            supports = (aten.mm, aten.relu)

            def build(self, program):
                import my_runtime

                model = my_runtime.compile(program.exported)
                return lambda *tensors: model.run(tensors)

    Operators that draw random numbers, write memory, run on other devices or compute in other
    dtypes never reach the engine, whatever ``supports`` says; ``fallback`` runs them.
    """

    level = "aten"
    fallback = "eager"
    options = (FREEZE,)

    engine: ClassVar[str] = ""
    """The distribution that has the engine; its version counts in what is kept on disk."""
    refuses: ClassVar[Mapping[Any, str | tuple[Callable[[Any], bool], str]]] = {}
    """Operators, overloads or packets, that ``supports`` takes and the engine has wrong or can't
    compile: each with the reason; or with a condition on its node, and the reason."""
    dtypes: ClassVar[Sequence[torch.dtype]] = _FLOATS + _REST
    """What it computes in. A graph in another is refused if nothing else of it is supported."""
    devices: ClassVar[Sequence[str]] = ("cpu",)
    """Device types that it runs on."""
    symbols: ClassVar[Literal["specialise", "elsewhere"]] = "specialise"
    """What to do where sizes change from call to call. ``specialise``: build once for each, up to
    `most_sizes`, and run further sizes elsewhere. ``elsewhere``: leave such operators to the
    fallback."""
    most_sizes: ClassVar[int] = 8
    """For how many sizes a region is built."""
    shares_results: ClassVar[bool] = False
    """Whether results lie in the engine's memory, where the next call overwrites them: they are
    then copied."""
    decomposes_attention: ClassVar[bool] = True
    """Whether attention is traced as products of matrices and a softmax, forward and backward.
    Other operators are decomposed by ``decompositions``: by default to torch's core ATen."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check what a subclass declares.

        Raises:
            InputError: it does not fit together.
        """
        super().__init_subclass__(**keywords)
        if cls.symbols not in SYMBOLS:
            raise InputError(
                f"{cls.__name__}: symbols is 'specialise' or 'elsewhere', not {cls.symbols!r}"
            )

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Compile a program, and return what runs it.

        That takes the program's inputs, real tensors, and returns its results in order: tensors,
        arrays of NumPy's, or whatever speaks DLPack. One thread at a time calls it.

        Args:
            program: what to compile.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method build(self, program)")

    def compile(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        options: Mapping[str, Any],
        kind: GraphKind,
    ) -> Compiled:
        """Compile one region, or a whole graph where the engine takes all of it."""
        region = _Region(self, graph_module, kind, options)
        if not any(map(is_symbolic, example_inputs)):
            return region.built(example_inputs)
        return region

    @functools.cached_property
    def made_by(self) -> str:
        """What decides how a graph is built: the engine with its version, and the adapter."""
        source = inspect.getsource(inspect.getmodule(type(self)) or type(self))
        adapter = hashlib.sha256(source.encode()).hexdigest()
        return f"{self.engine} {metadata.version(self.engine) if self.engine else ''} {adapter}"

    def _partition(self, own: Mapping[str, Any]) -> "Partition":
        from backbay.kit.partition import Partition  # noqa: PLC0415 (as in Backend)

        declared = self.supports
        if declared is not None and not callable(declared):
            declared = supports_operators(declared)

        def supports(node: Node) -> bool | str:
            return self._refused(node) or (declared(node) if declared is not None else True)

        return Partition(
            supports=supports,
            fallback=self.fallback,
            minimum=self.minimum_region,
            constants=self._freezes(own),
        )

    def _decompositions(self) -> Mapping[Any, Any]:
        return core_aten() if self.decompositions is None else self.decompositions

    def _freezes(self, own: Mapping[str, Any]) -> bool:
        return self.freeze or bool(own.get(FREEZE.name))

    def _refused(self, node: Node) -> str:
        """Return why no engine takes a node; empty where one may."""
        if is_random(node):
            return "draws random numbers"
        if mutates(node):
            return "writes memory"
        if node.meta.get(_RETURNED):
            return RETURNED_VIEW
        return self._refused_operator(node) or self._refused_values(node)

    def _refused_operator(self, node: Node) -> str:
        packet = getattr(node.target, "overloadpacket", None)
        found = self.refuses.get(node.target) or self.refuses.get(packet, "")
        if isinstance(found, str):
            return found
        applies, reason = found
        return reason if applies(node) else ""

    def _refused_values(self, node: Node) -> str:
        values = [value_of(x) for x in (node, *node.all_input_nodes)]
        if any(map(_is_unbacked, values)):
            return "has a size that its data decides"
        tensors = tensors_in(values)
        if self.symbols == "elsewhere" and any(map(is_symbolic, [*values, *tensors])):
            return "has a size that changes"
        made, read = tensors_in(values[0]), tensors_in(values[1:])
        # Engines differ in what nothing adds up to. Batch norm has empty results beside its own.
        if any(map(_is_empty, read)) or (made and all(map(_is_empty, made))):
            return "has no elements"
        return next(filter(None, map(self._refused_tensor, tensors)), "")

    def _refused_tensor(self, tensor: torch.Tensor) -> str:
        if tensor.dtype not in self.dtypes:
            return f"computes in {_named(tensor.dtype)}"
        if tensor.device.type not in self.devices:
            return f"runs on {tensor.device.type}"
        if tensor.layout != torch.strided:
            return f"has the layout {_named(tensor.layout)}"
        return ""

    def _aten_codegen(self, own: Mapping[str, Any], kind: GraphKind) -> Codegen:
        generate = super()._aten_codegen(own, kind)

        def checked(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            self._check_dtypes(graph_module)
            _drop_aliases(graph_module)
            for node in returned_views(graph_module.graph):
                node.meta[_RETURNED] = True
            return generate(graph_module, example_inputs)

        return checked if kind in self.graph_kinds else generate

    def _check_dtypes(self, graph_module: GraphModule) -> None:
        """Refuse a graph that would be left whole because it computes in another dtype."""
        floats = [
            (node, x.dtype)
            for node in graph_module.graph.nodes
            if node.op in ("placeholder", "call_function")
            for x in tensors_in(value_of(node))
            if x.is_floating_point()
        ]
        if not floats or any(dtype in self.dtypes for _, dtype in floats):
            return
        node, dtype = next((x for x in floats if x[0].op == "call_function"), floats[0])
        known = ", ".join(_named(x) for x in self.dtypes if x.is_floating_point)
        place = user_line(node) or first_line(graph_module.graph)
        raise InputError(
            f"{self.__name__} computes in {known}, and this graph in {_named(dtype)} ({place})"
        )

    def _aot(self, *arguments: Any) -> Codegen:
        generate = super()._aot(*arguments)
        if not self.decomposes_attention:
            return generate

        def decomposed(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 (as late)

            with sdpa_kernel(SDPBackend.MATH):
                return generate(graph_module, example_inputs)

        return decomposed


def makes_integers(node: Node) -> bool:
    """Whether a node's results are integers or booleans: a condition for `Engine.refuses`."""
    return not any(x.is_floating_point() for x in tensors_in(value_of(node)))


def _named(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


class _Region:
    """A region, and what was built of it for the sizes that it was called with."""

    def __init__(
        self,
        engine: Engine,
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
            plan = _Plan.of(graph_module, arguments)
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

    @classmethod
    def of(cls, graph_module: GraphModule, arguments: Sequence[Any]) -> "_Plan":
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
        for node in (x for x in placeholders if not x.users):
            graph.erase_node(node)
        graph.eliminate_dead_code()
        graph_module.recompile()
        layouts = [(x.dtype, x.shape, x.stride()) for x in map(value_of, computed)]
        read = graph.find_nodes(op="placeholder")
        return cls(tuple(placeholders[x] for x in read), tuple(sources), tuple(layouts))

    def taken(self, given: Sequence[Any]) -> Iterator[Any]:
        """Return what the program takes of a region's inputs."""
        return (given[x] for x in self.tensors)

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
        # An engine may hand out an input for what only copies it, or one buffer twice.
        used = {given[x].data_ptr() for x in self.tensors}
        for number, (tensor, value) in enumerate(zip(tensors, made, strict=True)):
            if tensor.data_ptr() in used or (copied and _same_memory(tensor, value)):
                tensors[number] = tensor.clone()
            used.add(tensors[number].data_ptr())
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


def _drop_aliases(graph_module: GraphModule) -> None:
    """Remove what only gives its input another name, but for a caller."""
    for node in graph_module.graph.nodes:
        if node.target in _ALIASES and all(x.op != "output" for x in node.users):
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def _is_empty(tensor: torch.Tensor) -> bool:
    return are_numbers(tensor.shape) and not tensor.numel()


def _is_unbacked(value: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415 (sympy takes a second)
        free_unbacked_symbols,
    )

    known = [x for x in (value, *tensors_in(value)) if is_symbolic(x)]
    return bool(known) and bool(free_unbacked_symbols(known))


@contextlib.contextmanager
def _outside_of_tracing() -> Iterator[None]:
    """Have an engine's own tracing see nothing of the compilation that asks for it."""
    with _disable_current_modes(), tracing(None), torch.no_grad():
        yield


def _failed(engine: Engine, program: Program, error: Exception) -> BackbayError:
    name, place = engine.engine or engine.__name__, first_line(program.graph_module.graph)
    found = _culprit(engine, program)
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


def _culprit(engine: Engine, program: Program) -> tuple[Node, Exception] | None:
    """Return the first operator that the engine can't build by itself either, and its error.

    Engines seldom name it, or by names of their own. After half a minute it is not known.
    """
    last, seen = time.monotonic() + _SEARCH_S, set[str]()
    for node in program.graph_module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        alone = taken_out([node, *(x for x in node.users if x.target is operator.getitem)])
        for given in alone.graph.find_nodes(op="placeholder"):
            given.meta.setdefault("val", program.constants.get(given.name))
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
