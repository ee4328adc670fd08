"""A backend that hands graphs to another compiler, with a runtime of its own: a foreign engine.

An author names the engine's distribution, says which operators it takes, and writes ``build``. What
AOTAutograd's graphs have and engines have not is dealt with here and in `engine_region`.
"""

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch.fx import GraphModule, Node

from backbay.errors import BackendUnavailable, InputError
from backbay.graph.aliases import returned_views
from backbay.graph.effects import is_random, mutates
from backbay.graph.partition import RETURNED_VIEW, supports_operators
from backbay.graph.report import first_line, user_line
from backbay.graph.values import are_numbers, is_symbolic, tensors_in, value_of
from backbay.kit.adapter_source import source_digest
from backbay.kit.aot import GraphKind
from backbay.kit.backend import Backend
from backbay.kit.codegen import Codegen, Compiled
from backbay.kit.decompositions import core_aten
from backbay.kit.engine_integers import computes_integers
from backbay.kit.engine_region import Region
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
    libraries: ClassVar[Sequence[str]] = ()
    """Other distributions that decide what it makes of a graph, such as an exporter or a runtime
    that reads what is kept: their versions count, too."""
    refuses: ClassVar[Mapping[Any, str | tuple[Callable[[Any], bool], str]]] = {}
    """Operators, overloads or packets, that ``supports`` takes and the engine has wrong or can't
    compile: each with the reason; or with a condition on its node, and the reason."""
    dtypes: ClassVar[Sequence[torch.dtype]] = _FLOATS + _REST
    """What it reads and computes. A graph in another is refused if nothing else of it is
    supported."""
    computes_integers: ClassVar[bool] = False
    """Whether it computes with integers as torch does: with all 64 bits, wrapping, exact in sums,
    and with division that rounds down. Otherwise it gets integers only to look elements up by
    them, and the fallback does the rest."""
    devices: ClassVar[Sequence[str]] = ("cpu",)
    """Device types that it runs on."""
    symbols: ClassVar[Literal["specialise", "elsewhere"]] = "specialise"
    """What to do where sizes change from call to call. ``specialise``: build once for each, up to
    `most_sizes`, and run further sizes elsewhere. ``elsewhere``: leave such operators to the
    fallback."""
    most_sizes: ClassVar[int] = 8
    """For how many sizes a region is built."""
    dense_inputs: ClassVar[bool] = False
    """Whether it takes only inputs that are contiguous: others are copied, at each call."""
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

        That takes the program's inputs and returns its results in order: tensors, NumPy arrays, or
        whatever speaks DLPack. One thread at a time calls it. Inputs are real tensors that record
        no gradients, with the strides of `Program.inputs`.

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
        region = Region(self, graph_module, kind, options)
        if not any(map(is_symbolic, example_inputs)):
            return region.built(example_inputs)
        return region

    @functools.cached_property
    def made_by(self) -> str:
        """What decides how a graph is built: the versions, the adapter, and the CPU."""
        names = [x for x in (self.engine, *self.libraries) if x]
        versions = " ".join(f"{x} {metadata.version(x)}" for x in names)
        adapter = source_digest([x for x in type(self).__mro__ if x not in Engine.__mro__])
        return f"{versions} {adapter} {_instructions()}"

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
        found = core_aten() if self.decompositions is None else self.decompositions
        if self.decomposes_attention:
            return found
        return {k: x for k, x in found.items() if "scaled_dot_product" not in str(k)}

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
        why = self._refused_operator(node) or self._refused_values(node)
        if not why and not self.computes_integers and computes_integers(node):
            return "computes with integers"
        return why

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
            self._check_installed()
            self._check_dtypes(graph_module)
            _drop_aliases(graph_module)
            for node in returned_views(graph_module.graph):
                node.meta[_RETURNED] = True
            return generate(graph_module, example_inputs)

        return checked if kind in self.graph_kinds else generate

    def _check_installed(self) -> None:
        try:
            self.made_by  # noqa: B018 (it asks for the version)
        except metadata.PackageNotFoundError as error:
            raise BackendUnavailable(
                f"{self.__name__} needs {error.name}, which is not installed: see `backbay doctor "
                f"{self.__name__}`"
            ) from error

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


def _instructions() -> str:
    """Return what this CPU understands: another's machine code may end the process.

    A cache may be shared. Compilers use more than the levels of AVX that torch tells apart.
    """
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, Any])()  # older torch has none
    able = sorted(name for name, has in capabilities.items() if has is True)
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *able])


def _named(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


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
