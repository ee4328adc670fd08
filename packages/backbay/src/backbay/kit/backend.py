"""A backend, written as a class: passes, then a code generator; the rest is done here."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.fx import GraphModule

from backbay import compile_log
from backbay.errors import BackbayError, InputError
from backbay.graph.detached import copy_detached
from backbay.graph.effects import may_write
from backbay.graph.rewrite import FROZEN, hold
from backbay.kit.aot import GraphKind, aot_compile, inductor_patches
from backbay.kit.codegen import (
    Codegen,
    Compiled,
    aten_level,
    keyed,
    minifiable,
    registry_in_use,
    torch_level,
)
from backbay.kit.passes import Pass, PassReport, snake_case
from backbay.kit.pipeline import failed, run_passes
from backbay.registry import Registry
from backbay.registry.options import option_problems
from backbay.registry.returned import checked
from backbay.registry.spec import BackendSpec, Option, Origin, Traits

if TYPE_CHECKING:
    from backbay.graph.partition import Coverage
    from backbay.kit.partition import DryRun, Partition

INDUCTOR = "inductor"
LEVELS = ("torch", "aten")
PARTITIONERS = ("min_cut", "default")
GRAPHS: tuple[GraphKind, ...] = ("inference", "forward", "backward")


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a backend made of one of Dynamo's graphs."""

    run: Compiled
    reports: tuple[PassReport, ...]
    """Of the passes on Dynamo's graph; those after it report to the observer of passes alone."""


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
    parameter ``options``, it is handed the backend's own, with their defaults; at level ``aten``,
    if it has a parameter ``kind``, which graph it is: ``inference``, ``forward`` or ``backward``.
    """

    passes: ClassVar[Sequence[Pass]] = ()
    codegen: ClassVar[str] = INDUCTOR
    """A registered backend that gets the graph after the passes."""
    level: ClassVar[str] = "torch"
    """Which graph ``compile`` gets: ``torch``, Dynamo's, or ``aten``, after AOTAutograd."""
    options: ClassVar[tuple[Option, ...]] = ()
    """What ``torch.compile(options=...)`` may hold beside the options of the passes, which
    `option_table` has, too. The rest is handed to Inductor, if it is next, and refused otherwise.
    """
    decompositions: ClassVar[Mapping[Any, Any] | None] = None
    """At level ``aten``, for other code generators than Inductor, which has its own."""
    freeze: ClassVar[bool] = False
    """Whether parameters and buffers are constants of the graph where no gradients are recorded.
    Passes can fold them; weights that are changed after compilation may then go unseen."""
    partitioner: ClassVar[str] = "min_cut"
    """``min_cut`` or ``default``: how forward and backward are cut apart."""
    name: ClassVar[str] = ""
    registry: Registry | None = None
    """Where code generators are looked up. Default: where the backend itself was, as far as a
    registry compiles with it; see `registry_in_use`."""

    supports: ClassVar[Callable[..., bool | str] | Collection[Any] | None] = None
    """What ``compile`` takes, at level ``aten``: a method of a node that returns whether, or a text
    that says why not; or a list of operators. Each supported region is compiled by itself."""
    fallback: ClassVar[str] = INDUCTOR
    """A registered backend that gets what is not supported; ``eager`` runs it as it is."""
    graph_kinds: ClassVar[Collection[GraphKind]] = GRAPHS
    """Which of AOTAutograd's graphs ``compile`` takes, at level ``aten``; `fallback` gets the
    others. A backend for inference alone has ``("inference",)``."""
    minimum_region: ClassVar[int] = 1
    """Operators that a region has at least; a smaller one is left for the fallback."""

    compile: ClassVar[Callable[..., Compiled] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check what a subclass declares.

        Raises:
            InputError: it does not fit together.
        """
        super().__init_subclass__(**keywords)
        problem = next(_problems(cls), None)
        if problem is not None:
            raise InputError(f"{cls.__name__}: {problem}")

    def __init__(self) -> None:
        self.__name__ = self.name or snake_case(type(self).__name__)
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
        self._registry.warn_if_experimental(self)  # torch, which may have it by name, does not
        return self.compile_graph(
            graph_module, example_inputs, mode=mode, options=options, name=name
        ).run

    def compile_graph(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Compilation:
        """Compile one of Dynamo's graphs, and return what passes did to it as well.

        Args:
            graph_module: Dynamo's; it is changed.
            example_inputs: its inputs.
            mode: as torch.compile takes it.
            options: this backend's, and Inductor's where that is next.
            name: what the compile log calls the backend.
        """
        own, rest = self._options(options)
        if self._freezes(own) and not torch.is_grad_enabled():
            freeze(graph_module, example_inputs)
        passes = self._enabled(own)
        nodes = len(graph_module.graph.nodes)
        reports = run_passes([x for x in passes if x.level == "torch"], graph_module, own)
        if self.compile is None and self.codegen == INDUCTOR:
            wanted = {k: v for x in reports for k, v in x.inductor.items()}
            rest = {**wanted, **rest}
        later = [x for x in passes if x.level != "torch"]
        if later or self.level == "aten" or self.compile is not None or self.codegen != "eager":
            _copy_detached(graph_module)  # AOTAutograd may come next
        generate = self._generator(later, own, rest, mode)
        for one in passes:
            generate = one.wrap_codegen(generate)
        compiled = generate(graph_module, example_inputs)
        changed = ", ".join(f"{x.name} {x.changes}x" for x in reports if x.changes)
        why = f"its code generator{f', after {changed}' if changed else ''}"
        if self.compile is None:
            self._next = self._registry.lookup_backend(self.codegen)
        ran = self.codegen if self.compile is None else self.__name__
        if self._partition(own) is None:  # else each of AOTAutograd's graphs has its own record
            compile_log.note(
                compile_log.Record(asked=name or self.__name__, ran=ran, why=why, nodes=nodes)
            )
        return Compilation(minifiable(compiled), tuple(reports))

    def code_generator(self, mode: str | None, options: Mapping[str, Any] | None) -> Codegen:
        """Return what compiles a graph when all passes are done.

        Args:
            mode: as torch.compile takes it.
            options: this backend's, and Inductor's.
        """
        return self._generator([], *self._options(options), mode)

    @classmethod
    def option_table(cls) -> tuple[Option, ...]:
        """Return all that ``torch.compile(options=...)`` may hold, by name.

        That is what `options` declares, a switch for each pass, and the passes' own options.
        """
        table = {x.name: x for x in cls.options}
        for one in cls.passes:
            for row in one.options():
                made = Option(
                    name=row.name,
                    type=row.type,
                    default=row.default,
                    choices=row.choices,
                    help=row.help,
                )
                table.setdefault(row.name, made)
        return tuple(table[x] for x in sorted(table))

    def __backbay_details__(self) -> dict[str, Any]:
        """Return what the registry asks of a backend that is registered, or compiled with."""
        ends_in_inductor = self.compile is None and self.codegen == INDUCTOR
        further = {"further_options": INDUCTOR} if ends_in_inductor else {}
        # Another code generator's modes are its own; a compile method gets none.
        mode = ends_in_inductor or (False if self.compile is not None else None)
        summary = next(iter((type(self).__doc__ or "").strip().splitlines()), "")
        return {
            "summary": summary,
            "options": self.option_table(),
            "traits": Traits(mode=mode, name=True),
            **further,
        }

    def reset(self) -> None:
        """Have the code generator forget what it made; torch.compiler.reset calls this.

        The compile log keeps its records: they say what ran, and that stays true.
        """
        if hasattr(self._next, "reset"):
            self._next.reset()

    def _generator(
        self, later: list[Pass], own: dict[str, Any], rest: dict[str, Any], mode: str | None
    ) -> Codegen:
        """Return what compiles Dynamo's graph, whose own passes have run."""
        if self.compile is None and self.codegen == INDUCTOR:
            patches = inductor_patches(later, own)
            # Passes in Inductor's hooks are in its keys; what others put in may be an operator.
            known = [x for x in self._enabled(own) if x not in later]
            return keyed(self._inductor(mode, {**rest, **patches}, own), known)
        if later or self.level == "aten":
            enabled = self._enabled(own)
            return self._aot(later, own, lambda kind: keyed(self._aten_codegen(own, kind), enabled))
        own_compile = self._own_compile(own)
        if own_compile is not None:
            who = f"{self.__name__}.compile"
            return lambda graph, inputs: checked(own_compile(graph, inputs), who)
        return keyed(
            torch_level(self.codegen, mode, rest or None, self._registry), self._enabled(own)
        )

    def _inductor(
        self,
        mode: str | None,
        options: dict[str, Any],
        own: Mapping[str, Any],  # noqa: ARG002 (an option may decide)
    ) -> Codegen:
        return torch_level(INDUCTOR, mode, options, self._registry)

    def dry_run(self, model: Any, *args: Any, train: bool = False, **keywords: Any) -> "DryRun":
        """Return what of a model would be compiled by this backend, without compiling anything.

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
        from backbay.kit.partition import (  # noqa: PLC0415 (11 ms, and few backends cut graphs)
            DryRun,
            survey,
            surveying,
        )

        own, _ = self._options(None)
        partition = self._partition(own)
        if partition is None:
            raise InputError(
                f"{self.__name__} takes every graph whole: a dry run needs a backend with supports"
            )
        none = replace(partition, supports=lambda _: "graphs of this kind are left")
        parts = {x: partition if x in self.graph_kinds else none for x in GRAPHS}
        found = DryRun()
        passes = self._enabled(own)
        first = [x for x in passes if x.level == "torch"]
        later = [x for x in passes if x.level != "torch"]

        def trace(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            run_passes(first, graph_module, own)
            _copy_detached(graph_module)
            generate = self._aot(later, own, lambda kind: surveying(parts[kind], found))
            return generate(graph_module, example_inputs)

        model, given = copy.deepcopy(model), copy.deepcopy((args, keywords))
        survey(model, torch.compile(model, backend=trace), given, train=train)
        return found

    @property
    def _registry(self) -> Registry:
        return self.registry or registry_in_use()

    def _enabled(self, own: Mapping[str, Any]) -> list[Pass]:
        configured = [x.configured(own) for x in self.passes]
        return [x for x in configured if x.enabled]

    def _partition(self, own: Mapping[str, Any]) -> "Partition | None":
        declared = self.supports
        if declared is None:
            return None
        from backbay.graph.partition import supports_operators  # noqa: PLC0415 (as above)
        from backbay.kit.partition import Partition  # noqa: PLC0415 (as above)

        return Partition(
            supports=declared if callable(declared) else supports_operators(declared),
            fallback=self.fallback,
            minimum=self.minimum_region,
            constants=self._freezes(own),
        )

    def _freezes(self, own: Mapping[str, Any]) -> bool:  # noqa: ARG002 (an option may decide)
        return self.freeze

    def _aten_codegen(self, own: Mapping[str, Any], kind: GraphKind) -> Codegen:
        if kind not in self.graph_kinds:
            self._note_left(kind)
            return aten_level(self.fallback, self._registry)
        own_compile, partition = self._own_compile(own, kind), self._partition(own)
        if own_compile is None:
            return aten_level(self.codegen, self._registry)
        if partition is None:
            return own_compile
        from backbay.kit.partition import partitioned  # noqa: PLC0415 (as above)

        seen = functools.partial(self._note_coverage, kind)
        return partitioned(partition, own_compile, self._registry, seen=seen)

    def _note_coverage(self, kind: GraphKind, found: "Coverage") -> None:
        owner = self.__name__ if found.covered or not found.operators else self.fallback
        left = f"; {self.fallback} runs {found.left}" if found.unsupported else ""
        compile_log.note(
            compile_log.Record(
                asked=self.__name__,
                ran=owner,
                why=f"{kind} graph: {found.share}{left}",
                fell_back=owner != self.__name__,
                nodes=found.operators,
                owned=found.covered,
            )
        )

    def _note_left(self, kind: GraphKind) -> None:
        compile_log.note(
            compile_log.Record(
                asked=self.__name__,
                ran=self.fallback,
                why=f"{kind} graph: {self.__name__} takes none",
                fell_back=True,
                owned=0,
            )
        )

    def _own_compile(self, own: Mapping[str, Any], kind: GraphKind | None = None) -> Codegen | None:
        given = self.compile
        if given is None:
            return None
        offered = {"options": {x.name: own[x.name] for x in self.options}, "kind": kind}
        taken = offered.keys() & inspect.signature(given).parameters.keys()
        compile_ = functools.partial(given, **{x: offered[x] for x in taken})

        def guarded(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
            try:
                return compile_(graph_module, example_inputs)
            except BackbayError:
                raise
            except Exception as error:
                raise failed(f"{self.__name__}.compile", graph_module, error) from error

        return guarded

    def _decompositions(self) -> Mapping[Any, Any] | None:
        return self.decompositions

    def _aot(
        self,
        passes: Sequence[Pass],
        own: Mapping[str, Any],
        codegen: Callable[[GraphKind], Codegen],
    ) -> Codegen:
        return functools.partial(
            aot_compile,
            passes=passes,
            codegen=codegen,
            decompositions=self._decompositions(),
            partitioner=self.partitioner,
            options=own,
        )

    def _options(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Part options into the backend's own, with defaults, and those of its code generator."""
        given = dict(given or {})
        table = self.option_table()
        passed_on = self.compile is None and self.codegen == INDUCTOR
        own = {k: v for k, v in given.items() if k in {x.name for x in table} or not passed_on}
        spec = BackendSpec(name=self.__name__, origin=Origin(kind="process"), options=table)
        problems = list(option_problems(spec, own))
        if problems:
            raise InputError("; ".join(problems))
        rest = {k: v for k, v in given.items() if k not in own}
        return {x.name: x.default for x in table} | own, rest


def option_rows(backend: type[Backend] | Backend) -> Iterator[dict[str, Any]]:
    """Yield the options of a backend as rows of its manifest, by name.

    A row has ``name``, ``type``, ``default``, ``help`` and, where they are limited, ``choices``;
    of a default that is None, which TOML has not, none.
    """
    for one in backend.option_table():
        row = {"name": one.name, "type": one.type, "default": one.default}
        row |= {"choices": list(one.choices), "help": one.help}
        yield {k: v for k, v in row.items() if v is not None and v != []}


def _copy_detached(graph_module: GraphModule) -> None:
    if torch.is_grad_enabled() and copy_detached(graph_module.graph):
        graph_module.recompile()


def _problems(cls: Any) -> Iterator[str]:
    if cls.level not in LEVELS:
        yield f"level is 'torch' or 'aten', not {cls.level!r}"
    if cls.partitioner not in PARTITIONERS:
        yield f"partitioner is 'min_cut' or 'default', not {cls.partitioner!r}"
    for strange in (x for x in cls.passes if not isinstance(x, Pass)):
        yield f"{strange!r} is no pass: decorate it with @graph_pass"
    yield from _option_problems(x for x in cls.passes if isinstance(x, Pass))
    for one in (x for x in cls.passes if x.level.startswith("inductor.")):
        if cls.codegen != INDUCTOR:
            yield f"{one.name} runs inside Inductor, and codegen is not it"
    if cls.compile is not None and cls.level == "torch":
        for one in (x for x in cls.passes if x.level != "torch"):
            yield (
                f"{one.name} runs after AOTAutograd, and compile() is to get Dynamo's graph, which "
                "is before it: set level = 'aten'"
            )
    yield from _graph_problems(cls)
    if cls.supports is not None and (cls.compile is None or cls.level != "aten"):
        yield (
            "supports says which regions of a functional graph compile() gets: define "
            "compile(self, graph_module, example_inputs), and set level = 'aten'"
        )


def _graph_problems(cls: Any) -> Iterator[str]:
    strange_kind = next((x for x in cls.graph_kinds if x not in GRAPHS), None)
    if strange_kind is not None:
        yield f"graph_kinds has {', '.join(map(repr, GRAPHS))}, not {strange_kind!r}"
    if tuple(cls.graph_kinds) != GRAPHS and (cls.compile is None or cls.level != "aten"):
        yield (
            "graph_kinds says which functional graphs compile() takes: define "
            "compile(self, graph_module, example_inputs), and set level = 'aten'"
        )


def _option_problems(passes: Iterable[Pass]) -> Iterator[str]:
    seen = dict[str, tuple[Any, ...]]()
    for row in (row for one in passes for row in one.options()):
        if seen.setdefault(row.name, row[1:4]) != row[1:4]:
            yield f"two passes have different options {row.name!r}"


def freeze(graph_module: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Make each parameter and buffer that a graph does not write a constant of it, in place.

    The inputs stay, unused: Dynamo passes them all the same.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: its inputs; Dynamo marks which of them are parameters and buffers.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, example_inputs, strict=True):
        # Dynamo's own mark: torch has no public one for what it holds constant from call to call.
        static = getattr(value, "_dynamo_static_input_type", None) is not None
        if not isinstance(value, torch.Tensor) or not static or any(map(may_write, node.users)):
            continue
        name = hold(graph_module, value.detach(), FROZEN)
        first = next(n for n in graph_module.graph.nodes if n.op != "placeholder")
        with graph_module.graph.inserting_before(first):
            constant = graph_module.graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
    graph_module.recompile()
