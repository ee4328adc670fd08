"""The good backends that faults are put into: Dynamo's or AOTAutograd's graph, interpreted.

A plan says where a fault goes: what is computed in place of an operator, how the graph is
rewritten, or what is done around the call. A plan that says nothing is a good backend.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from backbay.registry import BackendSpec, Origin, Traits

Run = Callable[..., Any]
Wrong = Callable[..., Any]
"""Called with the right operator and its arguments, in its place."""
Faults = Callable[[Any], Wrong | None]
"""Returns what is computed in place of a node's target, if anything."""
Around = Callable[[Run, torch.fx.GraphModule, Sequence[Any]], Run]
"""Given what runs the graph, the graph and the example inputs, returns what is called instead."""
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Run]


class Running(torch.fx.Interpreter):
    """Runs a graph node by node; some targets go wrong."""

    def __init__(self, module: torch.fx.GraphModule, faults: Faults) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._faults = faults

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call what is computed in place of a function, or the function."""
        wrong = self._faults(target)
        if wrong is None:
            return super().call_function(target, args, kwargs)
        return wrong(target, *args, **kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call what is computed in place of a method, or the method."""
        wrong = self._faults(target)
        if wrong is None:
            return super().call_method(target, args, kwargs)
        return wrong(lambda value, *a, **k: getattr(value, target)(*a, **k), *args, **kwargs)


def no_faults() -> Faults:
    """Return what finds nothing wrong with any target."""
    return lambda _target: None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where the fault of one graph goes."""

    faults: Callable[[], Faults] = no_faults
    """Called once a graph: what it gives may remember things from one run to the next."""
    rewrite: Callable[[torch.fx.GraphModule], None] | None = None
    """Changes the backend's own copy of the graph."""
    around: Around | None = None
    running: type[Running] = Running


GOOD = Plan()

TRAITS = Traits(training=True, dynamic_shapes=True, mutation=True, options=True, run_to_run=True)


class Backend:
    """A compiler function that other processes find by its name, and that takes no options."""

    def __init__(self, name: str, compile_graph: Compile, *, generates_code: bool = False) -> None:
        """Name it.

        Args:
            name: an attribute of `mutants`.
            compile_graph: what it does.
            generates_code: whether it says of itself that it compiles; else that it interprets.
        """
        self.__name__ = name
        self.__module__ = "mutants"
        self._compile = compile_graph
        self.spec = BackendSpec(
            name=name,
            origin=Origin(kind="process"),
            tags=() if generates_code else ("debug",),
            traits=TRAITS,
            options=(),
        )
        """What it declares; it knows no options, and refuses any."""

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Run:
        """Compile a graph.

        Raises:
            TypeError: it was given options.
        """
        if options:
            raise TypeError(f"{self.__name__} takes no options, and was given {', '.join(options)}")
        return self._compile(graph_module, example_inputs)

    def __reduce__(self) -> str:
        return self.__name__  # pickle looks it up in its module

    def __repr__(self) -> str:
        return f"<faulty backend {self.__name__}>"


def dynamo(plan: Plan = GOOD) -> Compile:
    """Compile by interpreting Dynamo's graph, in which autograd, modes and views are as written."""
    return lambda graph_module, example_inputs: runner(graph_module, example_inputs, plan)


def aot(forward: Plan = GOOD, backward: Plan = GOOD, **options: Any) -> Compile:
    """Compile by interpreting AOTAutograd's graphs, in which nothing is mutated.

    Args:
        forward: of the forward graph, or the only one.
        backward: of the backward graph.
        options: of `torch._dynamo.backends.common.aot_autograd`.
    """
    return aot_autograd(
        fw_compiler=lambda graph, inputs: boxed(runner(graph, inputs, forward)),
        bw_compiler=lambda graph, inputs: boxed(runner(graph, inputs, backward)),
        **options,
    )


def runner(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], plan: Plan) -> Run:
    """Return what runs a graph by a plan; the graph module that it was given stays as it is."""
    module = copied(graph_module)
    if plan.rewrite is not None:
        plan.rewrite(module)
    faults = plan.faults()

    def run(*args: Any) -> Any:
        # One interpreter a call: it holds the values, and calls may come from several threads.
        return plan.running(module, faults).run(*args)

    return run if plan.around is None else plan.around(run, module, example_inputs)


def boxed(run: Run) -> Run:
    """Take the arguments in a list, which is emptied, as AOTAutograd prefers it."""

    def call(args: list[Any]) -> Any:
        own = list(args)
        args.clear()
        return run(*own)

    call._boxed_call = True  # type: ignore[attr-defined] # torch's protocol
    return call


def copied(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a graph module of our own, with the same parameters, constants and submodules."""
    module = torch.fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    module.meta.update(graph_module.meta)
    return module


def instead_of(table: Mapping[Any, Wrong]) -> Callable[[], Faults]:
    """The faults of a table from operators (aten ones by their packet) to what goes wrong."""
    return lambda: lambda target: table.get(packet(target))


def of_pointwise(wrong: Wrong) -> Callable[[], Faults]:
    """Return the faults in which every pointwise operator goes wrong."""
    return lambda: lambda target: wrong if is_pointwise(target) else None


def packet(target: Any) -> Any:
    """Return an aten operator without its overload, and any other target as it is."""
    return getattr(target, "overloadpacket", target)


def is_pointwise(target: Any) -> bool:
    """Whether a target is a pointwise aten operator that writes to none of its arguments."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags and not target._schema.is_mutable


def kept(right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """Return wrong numbers in a tensor that is in every other way as the right one."""
    return torch.empty_like(right).copy_(wrong)


def on_outputs(change: Callable[[torch.Tensor], torch.Tensor]) -> Around:
    """Change each tensor that is returned and is not, and is no view of, an input."""

    def around(run: Run, _graph: Any, _inputs: Any) -> Run:
        def call(*args: Any) -> Any:
            before = {storage(x) for x in args if isinstance(x, torch.Tensor)}
            return tuple(
                change(x) if isinstance(x, torch.Tensor) and storage(x) not in before else x
                for x in run(*args)
            )

        return call

    return around


def on_inputs(change: Callable[[torch.Tensor], torch.Tensor]) -> Around:
    """Change each tensor before the graph sees it."""

    def around(run: Run, _graph: Any, _inputs: Any) -> Run:
        return lambda *args: run(*(change(x) if isinstance(x, torch.Tensor) else x for x in args))

    return around


def storage(value: torch.Tensor) -> int:
    """Return what tensors that share memory have in common, and others have not."""
    try:
        return int(value.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors and subclasses have none
        return id(value)
