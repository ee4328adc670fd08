"""A backend, written as a class: passes, then a code generator; the rest is done here."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from backbay import compile_log
from backbay.errors import BackbayError, InputError
from backbay.graph.partition import supports_operators
from backbay.kit.aot import Tell, aot_compile, inductor_patches
from backbay.kit.codegen import Codegen, Compiled, aten_level, keyed, torch_level
from backbay.kit.declaring import INDUCTOR, check_declared
from backbay.kit.freeze import freeze
from backbay.kit.hoist import compile_apart
from backbay.kit.minifying import minifiable
from backbay.kit.partition import DryRun, Partition, partitioned, survey, surveying
from backbay.kit.passes import Pass, PassReport, failed, run_passes
from backbay.registry import default_registry
from backbay.registry.options import option_problems
from backbay.registry.spec import BackendSpec, Option, Origin, Traits


class Backend:
    """A backend of torch.compile.

    ::

        @backbay.register_backend(name="silu_then_inductor")
        class SiluThenInductor(Backend):
            passes = (rewrite_silu,)
            codegen = "inductor"

    Passes of level ``torch`` run on Dynamo's graph, in order; then those of other levels run where
    they belong. A subclass may define ``compile(graph_module, example_inputs)`` instead of naming a
    code generator: it gives what runs the graph, which returns a tuple or list. If it has a
    parameter ``options``, it is handed the backend's own, with their defaults.
    """

    passes: ClassVar[Sequence[Pass]] = ()
    codegen: ClassVar[str] = INDUCTOR
    """A registered backend that gets the graph after the passes."""
    level: ClassVar[str] = "torch"
    """Which graph ``compile`` gets: ``torch``, Dynamo's, or ``aten``, after AOTAutograd."""
    options: ClassVar[tuple[Option, ...]] = ()
    """What ``torch.compile(options=...)`` may hold; the rest is handed to Inductor, if it is next,
    and refused otherwise."""
    decompositions: ClassVar[Mapping[Any, Any] | None] = None
    """At level ``aten``, for other code generators than Inductor, which has its own."""
    freeze: ClassVar[bool] = False
    """Whether parameters and buffers are constants of the graph where no gradients are recorded.
    Passes can fold them; weights that are changed after compilation may then go unseen."""
    partitioner: ClassVar[str] = "min_cut"
    """``min_cut`` or ``default``: how forward and backward are cut apart."""
    name: ClassVar[str] = ""

    supports: ClassVar[Callable[..., bool | str] | Collection[Any] | None] = None
    """What ``compile`` takes, at level ``aten``: a method of a node that gives whether, or a text
    that says why not; or a list of operators. Each supported region is compiled by itself."""
    fallback: ClassVar[str] = INDUCTOR
    """A registered backend that gets what is not supported; ``eager`` runs it as it is."""
    minimum_region: ClassVar[int] = 1
    """Operators that a region has at least; a smaller one is left for the fallback."""

    compile: ClassVar[Callable[..., Compiled] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check what a subclass declares.

        Raises:
            InputError: it does not fit together.
        """
        super().__init_subclass__(**keywords)
        check_declared(cls)

    def __init__(self) -> None:
        self.__name__ = self.name or _snake(type(self).__name__)
        self.reports: list[PassReport] = []
        """Of every graph since `reset`."""
        self._next: Any = None

    def __call__(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Compiled:
        """Compile one of Dynamo's graphs; torch.compile calls this."""
        own, rest = self._options(options)
        if self.freeze and not torch.is_grad_enabled():
            freeze(graph_module, example_inputs)
        first, later = self._by_level()
        nodes, known = len(graph_module.graph.nodes), len(self.reports)
        self._tell(run_passes(first, graph_module, own))
        if self.compile is None and self.codegen == INDUCTOR:
            wanted = {k: v for x in self.reports[known:] for k, v in x.inductor.items()}
            rest = {**wanted, **rest}
        generate = self._generator(later, own, rest, mode)
        compiled = compile_apart(generate, graph_module, example_inputs)
        changed = ", ".join(f"{x.name} {x.changes}x" for x in self.reports[known:] if x.changes)
        why = f"its code generator{f', after {changed}' if changed else ''}"
        if self.compile is None:
            self._next = default_registry.lookup_backend(self.codegen)
        ran = self.codegen if self.compile is None else self.__name__
        compile_log.note(
            compile_log.Record(asked=name or self.__name__, ran=ran, why=why, nodes=nodes)
        )
        return minifiable(compiled)

    def __backbay_details__(self) -> dict[str, Any]:
        """Give what the registry asks of a backend that is registered, or compiled with."""
        ends_in_inductor = self.compile is None and self.codegen == INDUCTOR
        further = {"further_options": INDUCTOR} if ends_in_inductor else {}
        # Another code generator's modes are its own; a compile method gets none.
        mode = ends_in_inductor or (False if self.compile is not None else None)
        summary = next(iter((type(self).__doc__ or "").strip().splitlines()), "")
        return {
            "summary": summary,
            "options": tuple(self.options),
            "traits": Traits(mode=mode, name=True),
            **further,
        }

    def reset(self) -> None:
        """Forget the reports, and have the code generator forget; torch.compiler.reset calls this.

        The compile log keeps its records: they say what ran, and that stays true.
        """
        self.reports.clear()
        if hasattr(self._next, "reset"):
            self._next.reset()

    def _generator(
        self, later: list[Pass], own: dict[str, Any], rest: dict[str, Any], mode: str | None
    ) -> Codegen:
        """Give what compiles Dynamo's graph, whose own passes have run."""
        if self.compile is None and self.codegen == INDUCTOR:
            patches = inductor_patches(later, own, self._tell)
            # Passes in Inductor's hooks are in its keys; what others put in may be an operator.
            known = [x for x in self.passes if x not in later]
            return keyed(torch_level(INDUCTOR, mode, {**rest, **patches}), known)
        if later or self.level == "aten":
            return self._aot(later, own, keyed(self._aten_codegen(own), self.passes))
        own_compile = self._own_compile(own)
        if own_compile is not None:
            return lambda graph, inputs: _checked(own_compile(graph, inputs), self.__name__)
        return keyed(torch_level(self.codegen, mode, rest or None), self.passes)

    def dry_run(self, model: Any, *args: Any, train: bool = False, **keywords: Any) -> DryRun:
        """Tell what of a model would be compiled by this backend, without compiling anything.

        Dynamo and AOTAutograd trace it, passes run, and the graphs are run as they are, once, on a
        copy of the model.

        Args:
            model: a module or function.
            args: what it is called with.
            train: whether backward graphs count too.
            keywords: further arguments of the model.

        Raises:
            InputError: the backend does not say what it supports.
        """
        partition = self._partition()
        if partition is None:
            raise InputError(
                f"{self.__name__} takes every graph whole: a dry run needs a backend with supports"
            )
        found = DryRun()
        own, _ = self._options(None)
        first, later = self._by_level()

        def trace(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            run_passes(first, graph_module, own)
            generate = self._aot(later, own, surveying(partition, found), tell=lambda _: None)
            return generate(graph_module, example_inputs)

        model, given = copy.deepcopy(model), copy.deepcopy((args, keywords))
        survey(model, torch.compile(model, backend=trace), given, train=train)
        return found

    def _by_level(self) -> tuple[list[Pass], list[Pass]]:
        """Give the passes on Dynamo's graph, and those after it."""
        first = [x for x in self.passes if x.level == "torch"]
        return first, [x for x in self.passes if x.level != "torch"]

    def _partition(self) -> Partition | None:
        declared = self.supports
        if declared is None:
            return None
        supports = declared if callable(declared) else supports_operators(declared)
        return Partition(supports=supports, fallback=self.fallback, minimum=self.minimum_region)

    def _aten_codegen(self, own: Mapping[str, Any]) -> Codegen:
        own_compile, partition = self._own_compile(own), self._partition()
        if own_compile is None:
            return aten_level(self.codegen)
        return own_compile if partition is None else partitioned(partition, own_compile)

    def _own_compile(self, own: Mapping[str, Any]) -> Codegen | None:
        given = self.compile
        if given is None:
            return None
        takes_options = "options" in inspect.signature(given).parameters
        compile_ = functools.partial(given, options=own) if takes_options else given

        def guarded(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            try:
                return compile_(graph_module, example_inputs)
            except BackbayError:
                raise
            except Exception as error:
                raise failed(f"{self.__name__}.compile", graph_module, error) from error

        return guarded

    def _aot(
        self,
        passes: Sequence[Pass],
        own: Mapping[str, Any],
        codegen: Codegen,
        tell: Tell | None = None,
    ) -> Codegen:
        return functools.partial(
            aot_compile,
            passes=passes,
            codegen=codegen,
            decompositions=self.decompositions,
            partitioner=self.partitioner,
            options=own,
            tell=tell or self._tell,
        )

    def _options(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Part options into the backend's own, with defaults, and those of its code generator."""
        given = dict(given or {})
        names = {x.name for x in self.options}
        passed_on = self.compile is None and self.codegen == INDUCTOR
        own = {k: v for k, v in given.items() if k in names or not passed_on}
        spec = BackendSpec(
            name=self.__name__, origin=Origin(kind="process"), options=tuple(self.options)
        )
        problems = list(option_problems(spec, own))
        if problems:
            raise InputError("; ".join(problems))
        rest = {k: v for k, v in given.items() if k not in own}
        return {x.name: x.default for x in self.options} | own, rest

    def _tell(self, reports: list[PassReport]) -> None:
        self.reports += reports


def _checked(compiled: Compiled, who: str) -> Compiled:
    """Refuse what is no tuple: Dynamo takes the first row of a bare tensor for the result."""
    if not callable(compiled):
        raise BackbayError(f"{who}.compile gives {type(compiled).__name__}, not a callable")
    if _is_forward_of_tuple(compiled):
        return compiled  # as it is, Dynamo calls it without anything between

    @functools.wraps(compiled)
    def run(*arguments: Any) -> Any:
        results = compiled(*arguments)
        if isinstance(results, (tuple, list)):
            return results
        raise BackbayError(
            f"what {who}.compile made returns {type(results).__name__}: return a tuple, with one "
            "value for each of the graph's results"
        )

    return run


def _is_forward_of_tuple(compiled: Compiled) -> bool:
    """Tell whether it is a graph's own forward, and the graph gives a tuple."""
    owner = getattr(compiled, "__self__", None)
    if not isinstance(owner, GraphModule) or compiled != owner.forward:
        return False
    return isinstance(owner.graph.output_node().args[0], (tuple, list))


def _snake(name: str) -> str:
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in name).lstrip("_")
