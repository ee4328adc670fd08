"""Faults of autograd: gradients that are lost, wrong, or given where eager has none."""

from typing import Any

import torch

from mutants.graphs import writes_to
from mutants.harness import (
    Backend,
    Plan,
    Run,
    Running,
    aot,
    dynamo,
    instead_of,
)
from mutants.mutant import Compiled, Demonstration, Mutant
from mutants.numerics import aten


def on_gradients(change: Any) -> Plan:
    """Return the plan in which what backward returns is changed: ``change(gradient, position)``."""

    def around(run: Run, _graph: Any, _inputs: Any) -> Run:
        def call(*args: Any) -> Any:
            return tuple(
                change(x, i) if isinstance(x, torch.Tensor) else x for i, x in enumerate(run(*args))
            )

        return call

    return Plan(around=around)


def gradients(function: Any, *inputs: torch.Tensor) -> Demonstration:
    """Return the demonstration that shows the gradients of a sum."""

    def shown(compiled: Compiled) -> Any:
        leaves = [x.clone().requires_grad_() for x in inputs]
        total: Any = compiled(function)(*leaves).sum()
        total.backward()
        return [x.grad for x in leaves]

    return shown


def _without_grad(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        with torch.no_grad():
            return run(*args)

    return call


def _second_is_zero(gradient: torch.Tensor, position: int) -> torch.Tensor:
    return torch.zeros_like(gradient) if position == 1 else gradient


def _detached_in_place(op: Any, x: torch.Tensor) -> Any:
    in_place = x.requires_grad and not x.is_leaf and not x._is_view()
    return x.detach_() if in_place else op(x)


def _applied(function: Any, *args: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = function.apply(*args)
    return result


class _FirstOrderOnly(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.detach()


def _first_order(x: Any) -> Any:
    is_leaf = isinstance(x, torch.Tensor) and x.requires_grad
    return _applied(_FirstOrderOnly, x) if is_leaf and torch.is_grad_enabled() else x


def _gradients_once(run: Run, graph: torch.fx.GraphModule, _inputs: Any) -> Run:
    writes = any(writes_to(x) is not None for x in graph.graph.nodes)
    # What is written to must stay the caller's own tensor.
    return run if writes else lambda *args: run(*map(_first_order, args))


def _last_part_missing(op: Any, parts: Any, dim: int = 0) -> Any:
    right = op(parts, dim)
    right.narrow(dim, right.size(dim) - parts[-1].size(dim), parts[-1].size(dim)).zero_()
    return right


def _mode_stays(_op: Any, _mode: bool) -> None:
    """Leave the grad mode as it is."""


def _traced_through(_op: Any, forward: Any, _backward: Any, *args: Any, **_marks: Any) -> Any:
    faults = instead_of({torch._C._set_grad_enabled: _mode_stays})
    return Running(forward, faults()).run(*args)[0]


def _forgets_the_last(op: Any, *args: Any, **kwargs: Any) -> Any:
    name = str(getattr(op, "__name__", ""))
    if not name.startswith("_foreach_") or not name.endswith("_"):
        return op(*args, **kwargs)
    count = len(args[0])
    shorter = [x[:-1] if isinstance(x, (list, tuple)) and len(x) == count else x for x in args]
    return op(*shorter, **kwargs) if count > 1 else op(*args, **kwargs)


def _is_foreach(target: Any) -> Any:
    is_one = str(getattr(target, "__name__", "")).startswith("_foreach_")
    return _forgets_the_last if is_one else None


def _losses(compiled: Compiled) -> Any:
    def two(x: torch.Tensor) -> Any:
        loss = x.sin().sum()
        return loss, loss.detach()

    return [y.requires_grad for y in compiled(two)(torch.ones(3, requires_grad=True))]


def _penalty(compiled: Compiled) -> Any:
    x = torch.full((2,), 2.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    total: Any = (x * x + gradient).sum()
    total.backward()
    return x.grad


def _regions(compiled: Compiled) -> Any:
    def partly(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
        return y, x * 3

    return [y.requires_grad for y in compiled(partly)(torch.ones(3, requires_grad=True))]


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def _stepped(compiled: Compiled) -> Any:
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=0.5, foreach=True)
    for weight in weights:
        weight.grad = torch.ones(2)
    compiled(optimizer.step)()
    return [x.detach() for x in weights]


FAULTS = [
    Mutant(
        name="results_are_detached",
        family="autograd",
        fault="The graph is run without grad mode, so no result can be differentiated.",
        level="contract",
        compiler=Backend("results_are_detached", dynamo(Plan(around=_without_grad))),
        shown_by=lambda compiled: (
            compiled(torch.sin)(torch.ones(2, requires_grad=True)).requires_grad
        ),
    ),
    Mutant(
        name="gradients_one_percent_off",
        family="autograd",
        fault="Gradients are too large by one percent.",
        level="contract",
        compiler=Backend(
            "gradients_one_percent_off",
            aot(backward=on_gradients(lambda x, _: x * 1.01 if x.is_floating_point() else x)),
        ),
        shown_by=gradients(torch.sin, torch.ones(2)),
    ),
    Mutant(
        name="second_gradient_is_zero",
        family="autograd",
        fault="The gradient of the second input is zero.",
        level="contract",
        compiler=Backend("second_gradient_is_zero", aot(backward=on_gradients(_second_is_zero))),
        shown_by=gradients(torch.mul, torch.ones(2), torch.ones(2)),
    ),
    Mutant(
        name="detach_is_in_place",
        family="autograd",
        fault="A detached copy of a result detaches the result itself.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/100348",
        compiler=Backend(
            "detach_is_in_place",
            dynamo(
                Plan(
                    faults=instead_of(
                        {"detach": _detached_in_place, torch.detach: _detached_in_place}
                    )
                )
            ),
        ),
        shown_by=_losses,
    ),
    Mutant(
        name="second_derivative_lost",
        family="autograd",
        fault="A gradient that was asked for with create_graph has no graph, and nothing raises.",
        level="training",
        link="https://github.com/pytorch/pytorch/issues/181581",
        compiler=Backend("second_derivative_lost", dynamo(Plan(around=_gradients_once))),
        shown_by=_penalty,
    ),
    Mutant(
        name="no_grad_region_ignored",
        family="autograd",
        fault="What is computed under no_grad inside the function requires grad.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/114338",
        compiler=Backend(
            "no_grad_region_ignored",
            dynamo(Plan(faults=instead_of({torch._C._set_grad_enabled: _mode_stays}))),
        ),
        shown_by=_regions,
    ),
    Mutant(
        name="last_part_of_gradient_missing",
        family="autograd",
        fault="A gradient that backward puts together from parts lacks the last part.",
        level="training",
        link="https://github.com/pytorch/pytorch/issues/193061",
        compiler=Backend(
            "last_part_of_gradient_missing",
            aot(backward=Plan(faults=instead_of({aten.cat: _last_part_missing}))),
        ),
        shown_by=gradients(lambda x: x.chunk(2)[0] * 2 + x.chunk(2)[1].sin(), torch.ones(4, 2)),
    ),
    Mutant(
        name="custom_backward_ignored",
        family="autograd",
        fault="An autograd.Function is differentiated through its forward, not by its backward.",
        level="training",
        compiler=Backend(
            "custom_backward_ignored",
            dynamo(
                Plan(
                    faults=instead_of(
                        {torch.ops.higher_order.autograd_function_apply: _traced_through}
                    )
                )
            ),
        ),
        shown_by=gradients(lambda x: _applied(_Straight, x) + 0 * x, torch.ones(2)),
    ),
    Mutant(
        name="last_parameter_not_stepped",
        family="autograd",
        fault="An operator on a list of tensors leaves the last as it was.",
        level="training",
        compiler=Backend("last_parameter_not_stepped", dynamo(Plan(faults=lambda: _is_foreach))),
        shown_by=_stepped,
    ),
]
