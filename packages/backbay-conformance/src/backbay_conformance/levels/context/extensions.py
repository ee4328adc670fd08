"""Operators that torch did not bring along: torch.library, with fakes, changes and gradients."""

from typing import Any

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal
from backbay_conformance.subject import Subject

theme = Collection("context", "extensions")

_calls: list[str] = []
"""Which operators ran, in order: a compiler may not drop or double what it cannot see into."""


@torch.library.custom_op("backbay_conformance::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:
    _calls.append("scaled")
    return x * factor**times


@scaled.register_fake
def _(x: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


@torch.library.custom_op("backbay_conformance::add_to", mutates_args={"x"})
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("backbay_conformance::parts", mutates_args=())
def parts(xs: list[torch.Tensor], n: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.stack(xs).sum(0), [x * n for x in xs]


@parts.register_fake
def _(xs: list[torch.Tensor], n: int) -> tuple[torch.Tensor, list[torch.Tensor]]:  # noqa: ARG001
    return torch.empty_like(xs[0]), [torch.empty_like(x) for x in xs]


@torch.library.custom_op("backbay_conformance::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


@squared.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _saved(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0])


def _gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return gradient * x * 3  # not 2: told from a derivative that somebody made up


squared.register_autograd(_gradient, setup_context=_saved)


@torch.library.custom_op("backbay_conformance::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("backbay_conformance::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    """Read memory itself: it takes what is contiguous, and nothing else."""
    assert x.is_contiguous()
    return x.t().clone(memory_format=torch.preserve_format)


@transposed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.t()


@theme.agrees(lambda s: normal(s, 3, 4))
def custom_operator_is_given_other_arguments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return scaled(x + 1, 0.5, 2), scaled(x, 2.0) * 3, scaled(x, times=3, factor=-1.0)


@theme.case()
def custom_operator_runs_too_often_or_never(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(x, 2.0) + scaled(x * 2, 3.0)

    call, x = subject.compile(program), normal(subject, 3)
    call(x)
    _calls.clear()
    subject.near(call(x), x * 8)
    with subject.must("fail_behaviour", f"two calls of a custom operator ran {len(_calls)} times"):
        assert len(_calls) == 2


@theme.agrees(lambda s: (normal(s, 4), normal(s, 4)), needs={"mutation"}, calls=2)
def change_by_a_custom_operator_is_dropped(
    x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    before = x.sum()
    add_to(x, y)
    inner = y * 2
    add_to(inner, x)
    return before, x * 2, inner


@theme.agrees(lambda s: (normal(s, 3, 4), normal(s, 4)), needs={"mutation"})
def change_of_a_view_by_a_custom_operator_is_dropped(
    x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    add_to(x[1], y)
    return x.sum(0)


@theme.agrees(lambda s: (normal(s, 4), normal(s, 4)))
def results_of_a_custom_operator_change_places(
    x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    total, (first, second) = parts([x, y], 3)
    return total + 1, first - second, second


@theme.case(needs={"training"})
def gradient_of_a_custom_operator_is_not_its_own(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return squared(x.sin()).sum()

    x = normal(subject, 5, requires_grad=True)
    subject.compile(program)(x).backward()
    wanted = 3 * x.detach().sin() * x.detach().cos()
    subject.near(x.grad, wanted, what="gradient")


@theme.case()
def custom_operator_whose_size_depends_on_data(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return positive(x) * 2

    call = subject.compile(program)
    for values in ([1.0, -1.0, 2.0], [-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]):
        x = given(subject, values)
        subject.near(call(x), x[x > 0] * 2)


@theme.agrees(lambda s: normal(s, 3, 5))
def custom_operator_is_given_other_strides(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = transposed(x.t().contiguous() + 1)
    return y * 2, transposed((x * 2).contiguous())
