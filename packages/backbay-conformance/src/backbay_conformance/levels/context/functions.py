"""torch.autograd.Function: a backward written by hand must be the one that runs."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("context", "functions")

_NEEDS = {"training"}


class Tripled(torch.autograd.Function):
    """A gradient that no compiler could derive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * x * 3 * ctx.factor, None


class TwoResults(torch.autograd.Function):
    """One result cannot be differentiated, and saves a result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        product, index = x * y, x.argsort()
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(y, product)
        return product, index

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        y, product = ctx.saved_tensors
        x_gradient = gradients[0] * y if ctx.needs_input_grad[0] else None
        return x_gradient, gradients[0] * product if ctx.needs_input_grad[1] else None


class InPlace(torch.autograd.Function):
    """Changes its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(4)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 (torch's)
        return gradients[0] * 5


class Once(torch.autograd.Function):
    """Can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * ctx.saved_tensors[0] * 7


class Apart(torch.autograd.Function):
    """Sets its context up apart from forward, and gets None for what is not used."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, y * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004 (torch's)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # noqa: ARG004 (torch's)
        return tuple(None if g is None else g * 11 for g in gradients)


@theme.agrees(lambda s: normal(s, 4), needs=_NEEDS, train=True, calls=2)
def backward_by_hand_is_replaced(x: torch.Tensor) -> torch.Tensor:
    return Tripled.apply(x * 2, 0.5).exp()


@theme.agrees(lambda s: (normal(s, 5), normal(s, 5)), needs=_NEEDS, train=True)
def result_that_cannot_be_differentiated_can(x: torch.Tensor, y: torch.Tensor) -> Any:
    product, index = TwoResults.apply(x, y)
    return product + 1, index


@theme.case(needs=_NEEDS)
def need_for_gradients_is_not_told(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return TwoResults.apply(x, y)[0].sum()

    x, y = normal(subject, 4), normal(subject, 4, requires_grad=True)
    subject.compile(program)(x, y).backward()
    with subject.must("fail_grad", "an input that does not require grad has one"):
        assert x.grad is None
    subject.near(y.grad, x * y.detach(), what="gradient")


@theme.agrees(lambda s: normal(s, 4), needs=_NEEDS | {"mutation"}, train=True)
def change_by_a_function_is_dropped(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    z = InPlace.apply(y)
    return z + y


@theme.agrees(lambda s: normal(s, 4), needs=_NEEDS, train=True)
def function_that_is_differentiable_once(x: torch.Tensor) -> torch.Tensor:
    return Once.apply(x) * 2


@theme.case(needs=_NEEDS)
def gradients_that_are_none(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Apart.apply(x, y)[1].sum()

    def gradients(call: Any) -> list[torch.Tensor | None]:
        call(*(leaf := [x.clone().requires_grad_(), y.clone().requires_grad_()])).backward()
        return [x.grad for x in leaf]

    x, y = normal(subject, 3), normal(subject, 3)
    got, wanted = gradients(subject.compile(program)), gradients(program)
    with subject.must("fail_grad", "which inputs have a gradient"):
        # A compiler may give zeros where eager gives None: to an optimizer without momentum or
        # decay they are the same.
        assert got[1] is not None
        assert got[0] is None or not got[0].any()
    subject.near(got[1], wanted[1], what="gradient")


@theme.agrees(lambda s: normal(s, 4))
def function_without_gradients(x: torch.Tensor) -> torch.Tensor:
    return Tripled.apply(x, 2.0) + 1


@theme.agrees(lambda s: normal(s, 4), needs=_NEEDS, train=True)
def function_twice_in_one_graph(x: torch.Tensor) -> torch.Tensor:
    return Tripled.apply(Tripled.apply(x, 0.5), 2.0) + Once.apply(x)
