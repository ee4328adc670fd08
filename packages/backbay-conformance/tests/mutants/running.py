"""Faults from one call to the next, in the process's state, and in how a backend is called."""

import weakref
from typing import Any

import torch

from mutants.harness import (
    Backend,
    Compile,
    Plan,
    Run,
    aot,
    dynamo,
    storage,
)
from mutants.mutant import Compiled, Mutant


def _given_out_again(run: Run, _graph: Any, _inputs: Any) -> Run:
    buffers: dict[int, torch.Tensor] = {}

    def call(*args: Any) -> Any:
        inputs = {storage(x) for x in args if isinstance(x, torch.Tensor)}
        outputs = list(run(*args))
        for i, x in enumerate(outputs):
            plain = type(x) is torch.Tensor and not x.requires_grad and storage(x) not in inputs
            if not plain:
                continue
            old = buffers.get(i)
            if old is None or (old.shape, old.dtype, old.stride()) != (
                x.shape,
                x.dtype,
                x.stride(),
            ):
                buffers[i] = x
            else:
                outputs[i] = old.copy_(x)
        return tuple(outputs)

    return call


def _remembered(run: Run, _graph: Any, _inputs: Any) -> Run:
    first: list[Any] = []

    def call(*args: Any) -> Any:
        outputs = run(*args)
        if any(isinstance(x, torch.Tensor) and x.requires_grad for x in outputs):
            return outputs
        if not first:
            first.append(outputs)
        return first[0]

    return call


_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.arange}


def _folded(module: torch.fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target not in _FACTORIES or node.all_input_nodes:
            continue
        if any(isinstance(x, torch.SymInt) for x in node.args):
            continue
        name = f"_folded_{node.name}"
        setattr(module, name, torch.nn.Buffer(node.target(*node.args, **node.kwargs)))
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.get_attr(name))
        module.graph.erase_node(node)
    module.recompile()


def _cached(compile_graph: Compile) -> Compile:
    cache: dict[Any, Run] = {}

    def compile_cached(graph: torch.fx.GraphModule, inputs: Any) -> Run:
        key: list[Any] = []
        for node in graph.graph.nodes:
            key.append((node.op, str(node.target), [str(x) for x in node.all_input_nodes]))
            if node.op == "get_attr":  # its content is not in the key either: not this fault
                return compile_graph(graph, inputs)
        key += [
            (tuple(x.shape), x.dtype, x.stride(), x.requires_grad)
            if isinstance(x, torch.Tensor)
            else type(x)
            for x in inputs
        ]
        if any(isinstance(x, torch.SymInt) for x in inputs):
            return compile_graph(graph, inputs)
        return cache.setdefault(repr(key), compile_graph(graph, inputs))

    return compile_cached


def _kept_alive(run: Run, _graph: Any, _inputs: Any) -> Run:
    last: list[Any] = []

    def call(*args: Any) -> Any:
        last[:] = args
        return run(*args)

    return call


def _then(leave: Any) -> Any:
    def around(run: Run, _graph: Any, _inputs: Any) -> Run:
        def call(*args: Any) -> Any:
            outputs = run(*args)
            leave()
            return outputs

        return call

    return around


def _while_compiling(leave: Any) -> Compile:
    def compile_graph(graph: torch.fx.GraphModule, inputs: Any) -> Run:
        leave()
        return dynamo()(graph, inputs)

    return compile_graph


def _bare(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        outputs = run(*args)
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def _examples_without_grad(graph: torch.fx.GraphModule, inputs: Any) -> Run:
    for x in inputs:
        if isinstance(x, torch.Tensor) and x.is_leaf:
            x.requires_grad_(False)  # noqa: FBT003 (torch's own)
    return aot()(graph, inputs)


class _TakesAnything(Backend):
    """Ignores options, right or wrong."""

    def __call__(self, graph_module: Any, example_inputs: Any, **_options: Any) -> Run:
        """Compile a graph."""
        return super().__call__(graph_module, example_inputs)


def _gives_back(graph: torch.fx.GraphModule, _inputs: Any) -> Run:
    return graph.forward


def _gives_back_training(graph: torch.fx.GraphModule, inputs: Any) -> Run:
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return graph.forward
    return dynamo()(graph, inputs)


def _two_calls(compiled: Compiled) -> Any:
    function = compiled(torch.sin)
    first = function(torch.ones(2))
    function(torch.zeros(2))
    return first


def _second_call(compiled: Compiled) -> Any:
    function = compiled(torch.sin)
    function(torch.ones(2))
    return function(torch.zeros(2))


def _constants(compiled: Compiled) -> Any:
    function = compiled(lambda x: torch.zeros(2).add_(x))
    return [function(torch.ones(2)).clone() for _ in range(2)]


def _two_factors(compiled: Compiled) -> Any:
    twice = compiled(lambda x: x * 2)(torch.ones(2))
    return twice, compiled(lambda x: x * 3)(torch.ones(2))


def _outlived(compiled: Compiled) -> Any:
    function, x = compiled(torch.sin), torch.ones(2)
    seen = weakref.ref(x)
    function(x)
    del x
    return seen() is None


def _left(state: Any) -> Any:
    def shown(compiled: Compiled) -> Any:
        compiled(torch.sin)(torch.ones(2))
        return state()

    return shown


def _differentiable(compiled: Compiled) -> Any:
    return compiled(torch.sin)(torch.ones(2, requires_grad=True)).requires_grad


def _plain_options(compiled: Compiled) -> Any:
    return compiled(torch.sin, options={"no_such_option": True})(torch.ones(2))


def _one(compiled: Compiled) -> Any:
    return compiled(lambda x: x.sin())(torch.arange(4.0).view(2, 2))


def _was_given_back(compiled: Compiled) -> Any:
    from backbay_conformance.watching import Watched

    watched = Watched(compiled.backend, name="shown")  # type: ignore[attr-defined]
    torch.compile(torch.sin, backend=watched)(torch.ones(2, requires_grad=True))
    return [x.fell_back for x in watched.graphs]


FAULTS = [
    Mutant(
        name="results_overwritten_by_next_call",
        family="life cycle",
        fault="A result is in a buffer that the next call writes to.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/104435",
        compiler=Backend("results_overwritten_by_next_call", dynamo(Plan(around=_given_out_again))),
        shown_by=_two_calls,
    ),
    Mutant(
        name="first_result_for_all",
        family="life cycle",
        fault="The result of the first call is given at every further one.",
        level="contract",
        compiler=Backend("first_result_for_all", dynamo(Plan(around=_remembered))),
        shown_by=_second_call,
    ),
    Mutant(
        name="constants_folded_and_written",
        family="life cycle",
        fault="A tensor that the function makes anew at each call is made once, and written to.",
        level="contract",
        compiler=Backend("constants_folded_and_written", dynamo(Plan(rewrite=_folded))),
        shown_by=_constants,
    ),
    Mutant(
        name="cache_key_lacks_constants",
        family="life cycle",
        fault="Compiled code is kept under a key without the graph's numbers, so that two "
        "functions share it.",
        level="contract",
        link="https://github.com/pytorch/pytorch/pull/143808",
        compiler=Backend("cache_key_lacks_constants", _cached(dynamo())),
        shown_by=_two_factors,
    ),
    Mutant(
        name="arguments_kept_alive",
        family="life cycle",
        fault="The arguments of the last call are held, and their memory with them.",
        level="contract",
        compiler=Backend("arguments_kept_alive", dynamo(Plan(around=_kept_alive))),
        shown_by=_outlived,
    ),
    Mutant(
        name="grad_mode_left_off",
        family="state",
        fault="After a call grad mode is off.",
        level="contract",
        compiler=Backend(
            "grad_mode_left_off",
            dynamo(Plan(around=_then(lambda: torch._C._set_grad_enabled(False)))),  # noqa: FBT003
        ),
        shown_by=_left(torch.is_grad_enabled),
    ),
    Mutant(
        name="thread_count_changed",
        family="state",
        fault="After a call torch has another number of threads.",
        level="contract",
        compiler=Backend(
            "thread_count_changed",
            dynamo(Plan(around=_then(lambda: torch.set_num_threads(3)))),
        ),
        shown_by=_left(torch.get_num_threads),
    ),
    Mutant(
        name="default_dtype_changed",
        family="state",
        fault="The default dtype is another one once a graph was compiled.",
        level="contract",
        equivalent="Dynamo saves the default dtype before it compiles a frame and puts it back "
        "afterwards, so nothing that runs later sees another one.",
        compiler=Backend(
            "default_dtype_changed",
            _while_compiling(lambda: torch.set_default_dtype(torch.float64)),
        ),
        shown_by=None,
    ),
    Mutant(
        name="seeded_while_compiling",
        family="state",
        fault="Compiling seeds torch's random generator.",
        level="contract",
        equivalent="Dynamo saves the state of the random generator before it compiles a frame and "
        "puts it back afterwards, so every later draw is as without it.",
        compiler=Backend("seeded_while_compiling", _while_compiling(lambda: torch.manual_seed(7))),
        shown_by=None,
    ),
    Mutant(
        name="matmul_precision_changed",
        family="state",
        fault="Compiling leaves torch with a lower precision for products of matrices.",
        level="contract",
        compiler=Backend(
            "matmul_precision_changed",
            _while_compiling(lambda: torch.set_float32_matmul_precision("high")),
        ),
        shown_by=_left(torch.get_float32_matmul_precision),
    ),
    Mutant(
        name="bare_tensor_returned",
        family="abi",
        fault="The compiled function returns a single result as it is, and not in a tuple.",
        level="contract",
        compiler=Backend("bare_tensor_returned", dynamo(Plan(around=_bare))),
        shown_by=_one,
    ),
    Mutant(
        name="example_inputs_changed",
        family="abi",
        fault="Compiling switches requires_grad off on the example inputs, and believes them "
        "afterwards.",
        level="contract",
        compiler=Backend("example_inputs_changed", _examples_without_grad),
        shown_by=_differentiable,
    ),
    Mutant(
        name="unknown_options_taken",
        family="abi",
        fault="Options that it does not know are taken and ignored.",
        level="load",
        compiler=_TakesAnything("unknown_options_taken", dynamo()),
        shown_by=_plain_options,
    ),
    Mutant(
        name="falls_back_silently",
        family="vacuous",
        fault="Every graph is left to eager, and nobody is told.",
        level="contract",
        compiler=Backend("falls_back_silently", _gives_back, generates_code=True),
        shown_by=_was_given_back,
    ),
    Mutant(
        name="training_falls_back_silently",
        family="vacuous",
        fault="A graph that is trained is left to eager, and nobody is told.",
        level="contract",
        compiler=Backend("training_falls_back_silently", _gives_back_training, generates_code=True),
        shown_by=_was_given_back,
    ),
]
