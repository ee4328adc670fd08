"""Programs that any compiler can fuse, in each way in which one may silently leave them to eager.

A backend that says of itself that it runs graphs as they are passes: it claims nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.levels.making import given, normal
from backbay_conformance.ownership import Ownership, work_of
from backbay_conformance.subject import Subject
from backbay_conformance.watching import Graph

theme = Collection("honesty", "ownership")


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    z = (y.sin() * x).tanh()
    return (z - y.abs()).relu() + z * 0.5


def _must_own(subject: Subject, graphs: Sequence[Graph], what: str) -> None:
    """Refuse a backend that leaves everything of a graph to eager's kernels.

    Raises:
        Failed: vacuous.
    """
    if subject.runs_graphs_as_they_are:
        return
    for graph in graphs:
        if graph.fell_back:
            raise Failed("vacuous", f"{what}: left to {graph.ran_on or 'eager'}")
        if graph.owned is not None and not graph.owned.share:
            raise Failed("vacuous", f"{what}: the backend owns {graph.owned}")


def _measured(
    subject: Subject, call: Callable[..., Any], *args: Any, what: str, wanted: Any = None
) -> None:
    """Run warm, under the mode that counts, and hold every graph that ran to what it owns."""
    call(*args)
    for graph in subject.graphs:
        graph.owned = None
    with subject.watched.measuring():
        got = call(*args)
    if wanted is not None:
        subject.near(got, wanted)
    ran = [x for x in subject.graphs if x.owned is not None and x.nodes]
    if not ran:
        raise Failed("vacuous", f"{what}: nothing that the backend compiled ran")
    _must_own(subject, ran, what)


@theme.case()
def static_graph_is_left_to_eager(subject: Subject) -> None:
    x = normal(subject, 16, 33)
    _measured(subject, subject.compile(_chain), x, what="a static graph", wanted=_chain(x))


@theme.case(needs={"dynamic_shapes"})
def dynamic_graph_is_left_to_eager(subject: Subject) -> None:
    call = subject.compile(_chain, dynamic=True)
    for size in (5, 9):
        x = normal(subject, size, 7)
        _measured(subject, call, x, what="a graph of symbolic sizes", wanted=_chain(x))


@theme.case(needs={"dynamic_shapes"})
def second_size_is_left_to_eager(subject: Subject) -> None:
    call = subject.compile(_chain)
    for size in (5, 9, 12):
        x = normal(subject, size, 7)
        _measured(subject, call, x, what=f"size {size} after others", wanted=_chain(x))


@theme.parametrized(("float64", "bfloat16", "float16"))
def left_to_eager_in(subject: Subject, name: str) -> None:
    x = normal(subject, 16, 33).to(getattr(torch, name))
    _measured(subject, subject.compile(_chain), x, what=f"a graph in {name}")


@theme.case(needs={"int64"})
def integers_are_left_to_eager(subject: Subject) -> None:
    def program(n: torch.Tensor) -> torch.Tensor:
        return (n * 3 + 1).clamp(0, 50) ^ (n - 7).abs()

    n = torch.arange(-40, 40, device=subject.device)
    _measured(subject, subject.compile(program), n, what="integers", wanted=program(n))


@theme.case(needs={"training"})
def forward_in_training_is_left_to_eager(subject: Subject) -> None:
    x = normal(subject, 16, 33, requires_grad=True)
    call = subject.compile(_chain)
    call(x).sum().backward()
    _measured(subject, call, x, what="forward in training", wanted=_chain(x))


@theme.case(needs={"training"})
def backward_is_left_to_eager(subject: Subject) -> None:
    if subject.traits.training is None:
        raise NotRunnable("nobody declares that backward goes through it")
    x = normal(subject, 16, 33, requires_grad=True)
    call = subject.compile(_chain)
    call(x).sum().backward()  # warm: it may be compiled when it first runs
    losses = _chain(x).sum(), call(x).sum()
    plain, compiled = (work_of(torch.autograd.grad, (loss, x))[1] for loss in losses)
    owned = Ownership(graph=plain, dispatched=compiled)
    if not owned.share and not subject.runs_graphs_as_they_are:
        raise Failed("vacuous", f"backward: the backend owns {owned}")


@theme.case(needs={"mutation"})
def graph_that_changes_an_input_is_left_to_eager(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(1)
        return (x.sin() * 2).tanh() + x

    x = normal(subject, 16, 33)
    _measured(subject, subject.compile(program), x, what="a graph that changes an input")


@theme.case()
def graph_with_strided_inputs_is_left_to_eager(subject: Subject) -> None:
    x = normal(subject, 33, 32).t()[::2]
    _measured(subject, subject.compile(_chain), x, what="strided inputs", wanted=_chain(x))


@theme.case()
def graph_with_parameters_is_left_to_eager(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    model.to(subject.device).eval()
    x = normal(subject, 5, 8)
    _measured(subject, subject.compile(model), x, what="a module in evaluation")
    with torch.no_grad():
        _measured(subject, subject.compile(model), x, what="a module under no_grad")


@theme.case()
def large_graph_is_left_to_eager(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for i in range(40):
            x = (x * 0.9 + i).sin() if i % 2 else x - x.abs() * 0.1
        return x

    x = normal(subject, 16, 33)
    _measured(subject, subject.compile(program), x, what="a graph of 120 operators")


@theme.case()
def small_graph_is_left_to_eager(subject: Subject) -> None:
    x = normal(subject, 3)
    call = subject.compile(lambda x: x.sin() * 2)
    _measured(subject, call, x, what="a graph of two operators", wanted=x.sin() * 2)


@theme.case()
def reductions_are_left_to_eager(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp() + 1
        return y / y.sum(-1, keepdim=True), (y * x).amax(0)

    x = normal(subject, 16, 33)
    _measured(subject, subject.compile(program), x, what="reductions", wanted=program(x))


@theme.case()
def parts_of_a_broken_graph_are_left_to_eager(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2 + 1).sin() * x
        torch._dynamo.graph_break()  # noqa: SLF001
        return (y - x).tanh() * 0.5 + y

    x = normal(subject, 16, 33)
    _measured(subject, subject.compile(program), x, what="a part of a graph", wanted=program(x))


@theme.case()
def graph_after_a_recompile_is_left_to_eager(subject: Subject) -> None:
    call = subject.compile(_chain)
    kinds = (normal(subject, 5, 7), normal(subject, 5, 7).double(), normal(subject, 5, 7, 2))
    for number, x in enumerate(kinds):
        _measured(subject, call, x, what=f"compilation {number + 1}", wanted=_chain(x))


@theme.case()
def graph_after_a_failure_is_left_to_eager(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _chain(x) + y

    call, x = subject.compile(program), normal(subject, 5, 7)
    try:
        call(x, normal(subject, 3, 2))
    except Exception:  # noqa: BLE001 (each compiler has its own)
        _measured(subject, call, x, x, what="a graph after a failure", wanted=program(x, x))
        return
    raise Failed("lost_validation", "tensors that do not fit are added")


@theme.case()
def graph_after_a_reset_is_left_to_eager(subject: Subject) -> None:
    x = normal(subject, 5, 7)
    subject.compile(_chain)(x)
    torch.compiler.reset()
    subject.watched.reset()
    _measured(subject, subject.compile(_chain), x, what="a graph after a reset", wanted=_chain(x))


@theme.parametrized(("no_grad", "inference_mode", "autocast"))
def left_to_eager_under(subject: Subject, name: str) -> None:
    modes: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast(subject.device.type, torch.bfloat16),
    }
    x = normal(subject, 16, 33)
    with modes[name]():
        _measured(subject, subject.compile(_chain), x, what=f"a graph under {name}")


@theme.case()
def another_compiler_does_the_work(subject: Subject) -> None:
    from torch._dynamo.utils import counters  # noqa: PLC0415 (Dynamo's own bookkeeping)

    before = counters["inductor"].total()
    x = normal(subject, 16, 33)
    subject.matches(_chain, x)
    if counters["inductor"].total() == before or "inductor" in declared(subject):
        return
    raise Failed("vacuous", "inductor compiled the graph, and nothing declares that it does")


def declared(subject: Subject) -> set[str]:
    """Return the names of the compilers that a backend says it uses, its own among them."""
    compiler, spec = subject.watched.compiler, subject.spec
    names = {subject.name, getattr(compiler, "codegen", None)}
    if spec is not None:
        names |= {spec.options, spec.further_options} & {"inductor"}
    return {x for x in names if isinstance(x, str)}


@theme.case()
def result_is_looked_up_by_its_inputs(subject: Subject) -> None:
    call = subject.compile(_chain)
    x, y = given(subject, [1.0, 2.0, 3.0]), given(subject, [1.0, 2.0, 3.0])
    results = [call(x), call(y), call(x)]
    with subject.must("vacuous", "equal inputs give one tensor: it was not computed again"):
        assert len({result.data_ptr() for result in results}) == 3
    results[0].zero_()
    subject.near(call(y), _chain(y))
