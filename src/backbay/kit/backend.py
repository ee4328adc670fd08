"""A backend, written as a class: passes, then a code generator; the rest is done here."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch.fx import GraphModule

from backbay import ledger
from backbay.errors import BackbayError, InputError
from backbay.kit.aot import aot_compile, inductor_patches
from backbay.kit.codegen import Codegen, Compiled, torch_level
from backbay.kit.minifying import minifiable
from backbay.kit.passes import Pass, PassReport, run_passes
from backbay.registry import default_registry
from backbay.registry.options import option_problems
from backbay.registry.spec import BackendSpec, Option, Origin

INDUCTOR = "inductor"


class Backend:
    """A backend of torch.compile.

    ::

        @backbay.register_backend(name="silu_then_inductor")
        class SiluThenInductor(Backend):
            passes = (rewrite_silu,)
            codegen = "inductor"

    Passes of level ``torch`` run on Dynamo's graph, in order; then those of other levels run where
    they belong. A subclass may define ``compile(graph_module, example_inputs)`` instead of naming a
    code generator: it gives what runs the graph, which returns a tuple or list.
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
    partitioner: ClassVar[str] = "min_cut"
    """``min_cut`` or ``default``: how forward and backward are cut apart."""
    name: ClassVar[str] = ""

    compile: ClassVar[Callable[..., Compiled] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check what a subclass declares.

        Raises:
            InputError: a level or partitioner that does not exist, or a pass that is none.
        """
        super().__init_subclass__(**keywords)
        if cls.level not in {"torch", "aten"}:
            raise InputError(f"{cls.__name__}: level is 'torch' or 'aten', not {cls.level!r}")
        if cls.partitioner not in {"min_cut", "default"}:
            raise InputError(
                f"{cls.__name__}: partitioner is 'min_cut' or 'default', not {cls.partitioner!r}"
            )
        strange = [x for x in cls.passes if not isinstance(x, Pass)]
        if strange:
            raise InputError(
                f"{cls.__name__}: {strange[0]!r} is no pass: decorate it with @graph_pass"
            )
        hooked = [x.name for x in cls.passes if x.level.startswith("inductor.")]
        if hooked and cls.codegen != INDUCTOR:
            raise InputError(
                f"{cls.__name__}: {hooked[0]} runs inside Inductor, and codegen is not it"
            )

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
        first = [x for x in self.passes if x.level == "torch"]
        later = [x for x in self.passes if x.level != "torch"]
        nodes = len(graph_module.graph.nodes)
        self._tell(run_passes(first, graph_module, own))
        generate = self._generator(later, own, rest, mode)
        compiled = generate(graph_module, example_inputs)
        changed = ", ".join(f"{x.name} {x.changes}x" for x in self.reports if x.changes)
        why = f"its code generator{f', after {changed}' if changed else ''}"
        if self.compile is None:
            self._next = default_registry.lookup_backend(self.codegen)
        ran = self.codegen if self.compile is None else self.__name__
        ledger.note(ledger.Record(asked=name or self.__name__, ran=ran, why=why, nodes=nodes))
        return minifiable(compiled)

    def reset(self) -> None:
        """Forget the reports, and have the code generator forget; torch.compiler.reset calls this.

        The ledger keeps its records: they say what ran, and that stays true.
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
            return torch_level(INDUCTOR, mode, {**rest, **patches})
        if later or self.level == "aten":
            return functools.partial(
                aot_compile,
                passes=later,
                codegen=self.compile or self.codegen,
                decompositions=self.decompositions,
                partitioner=self.partitioner,
                options=own,
                tell=self._tell,
            )
        own_compile = self.compile
        if own_compile is not None:
            return lambda graph, inputs: _checked(own_compile(graph, inputs), self.__name__)
        return torch_level(self.codegen, mode, rest or None)

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
    if getattr(compiled, "__self__", None).__class__.__name__ == "GraphModuleImpl":
        return compiled  # a graph's own forward returns what the graph does

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


def _snake(name: str) -> str:
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in name).lstrip("_")
