"""Dynamo's side of the contract: graph breaks, many graphs, and how often it must compile."""

from collections.abc import Callable

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal
from backbay_conformance.subject import Subject

theme = Collection("contract", "capture")

FACTOR = 3
"""Read by a program as a global."""
_DYNAMIC = {"dynamic_shapes"}


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().sum(-1)


def _compiles(subject: Subject, most: int, why: str) -> None:
    with subject.must("fail_behaviour", f"{len(subject.graphs)} compilations {why}"):
        assert len(subject.graphs) <= most


@theme.case()
def break_in_the_graph_loses_a_value(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        torch._dynamo.graph_break()  # noqa: SLF001 (its public name is newer)
        z = y * 2 + x
        torch._dynamo.graph_break()  # noqa: SLF001
        return z, y, z.sum()

    subject.agrees(program, normal(subject, 5))
    with subject.must("fail_behaviour", "the parts of a broken graph did not reach the backend"):
        assert len(subject.graphs) >= 2


@theme.case(needs={"training"})
def gradient_ends_at_a_break(subject: Subject) -> None:
    model = torch.nn.Linear(4, 4).to(subject.device)

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x).relu()
            torch._dynamo.graph_break()  # noqa: SLF001
            return self.inner(y).tanh()

    subject.agrees(Broken(), normal(subject, 3, 4), train=True)


@theme.case()
def item_is_that_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        scale = x.sum().item()
        return x * scale, scale

    call = subject.compile(program)
    for values in ([1.0, 2.0], [5.0, -1.0], [0.5, 0.25]):
        x = given(subject, values)
        subject.near(call(x), program(x))


@theme.case()
def branch_on_data_is_that_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    call = subject.compile(program)
    for values in ([1.0, 2.0], [-5.0, -1.0], [0.5, 0.25], [-1.0, 0.0]):
        x = given(subject, values)
        subject.near(call(x), program(x))


@theme.case()
def size_depends_on_data(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[x > 0] * 2, x.nonzero(), (x * 3).unique()

    call = subject.compile(program)
    for values in ([1.0, -2.0, 3.0, 3.0], [-1.0, -2.0, -3.0, 0.0], [1.0, 1.0, 1.0, 2.0]):
        x = given(subject, values)
        subject.near(call(x), program(x))


@theme.case()
def functions_inside_functions(subject: Subject) -> None:
    constant = normal(subject, 3)

    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 1 else x * power(x, n - 1)

    def applied(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return function(x) + constant

    def program(x: torch.Tensor) -> torch.Tensor:
        parts = [power(x, n) for n in range(1, 5)]
        table = {f"p{i}": part * FACTOR for i, part in enumerate(parts)}
        return applied(lambda y: y + sum(table.values()), x) + max(len(parts), 2)

    subject.agrees(program, normal(subject, 3))


@theme.case()
def one_backend_for_several_functions(subject: Subject) -> None:
    functions = [lambda x, i=i: (x * i).cos() + i for i in range(4)]
    calls = [subject.compile(function) for function in functions]
    x = normal(subject, 5)
    subject.near([call(x) for call in calls], [function(x) for function in functions])
    subject.near([call(x) for call in calls[::-1]], [f(x) for f in functions[::-1]])


@theme.case()
def every_call_compiles(subject: Subject) -> None:
    subject.matches(_program, *(normal(subject, 3, 4) for _ in range(5)))
    _compiles(subject, 1, "for five calls of one shape")


@theme.case(needs={"training"})
def every_step_compiles(subject: Subject) -> None:
    model = torch.nn.Linear(4, 2).to(subject.device)
    call, optimizer = subject.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        call(normal(subject, 3, 4)).sum().backward()
        optimizer.step()
    _compiles(subject, 1, "for four steps of training")


@theme.case(needs=_DYNAMIC)
def dynamic_sizes_are_compiled_one_by_one(subject: Subject) -> None:
    call = subject.compile(_program, dynamic=True)
    for size in (3, 5, 8, 13):
        x = normal(subject, size, size + 1)
        subject.near(call(x), _program(x))
    _compiles(subject, 1, "with dynamic=True for four sizes")


@theme.case(needs=_DYNAMIC)
def automatic_dynamic_compiles_each_size(subject: Subject) -> None:
    subject.matches(_program, *(normal(subject, size, 4) for size in (3, 5, 8, 13, 21)))
    _compiles(subject, 2, "for five sizes of one dimension")


@theme.case(needs=_DYNAMIC)
def dimension_marked_dynamic_is_not(subject: Subject) -> None:
    call = subject.compile(_program)
    for size in (3, 5, 8, 13):
        x = normal(subject, size, 4)
        torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 (documented; it has no other name)
        subject.near(call(x), _program(x))
    _compiles(subject, 1, "for four sizes of a dimension that is marked dynamic")


@theme.case(needs=_DYNAMIC)
def sizes_zero_and_one_are_taken_for_others(subject: Subject) -> None:
    call = subject.compile(_program, dynamic=True)
    for rows, columns in ((4, 3), (1, 3), (0, 3), (4, 1), (7, 5), (1, 1), (3, 0)):
        x = normal(subject, rows, columns)
        subject.near(call(x), _program(x))


@theme.case(needs=_DYNAMIC)
def arithmetic_on_sizes_is_that_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        half = x[: n // 2] * n
        return half, x.view(n * 2, -1) + n % 3, x.new_zeros(n + 1), torch.arange(n) * (n - 1)

    subject.matches(program, *(normal(subject, size, 4) for size in (4, 6, 9, 11)), dynamic=True)


@theme.case(needs=_DYNAMIC | {"training"})
def gradient_has_the_sizes_of_the_first_call(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    model.to(subject.device)
    call = subject.compile(model, dynamic=True)
    for size in (3, 5, 8):
        got, wanted = (normal(subject, size, 4).fill_(0.3).requires_grad_() for _ in range(2))
        call(got).square().sum().backward()
        model(wanted).square().sum().backward()
        subject.near(got.grad, wanted.grad, what=f"gradient at size {size}")


@theme.case()
def other_kind_of_input_is_not_compiled_anew(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 3, 4)
    kinds = (x, x.double(), x.bfloat16(), x[0], x.t().contiguous(), x.clone().requires_grad_())
    for kind in kinds:
        subject.near(call(kind), _program(kind))


@theme.case()
def graph_is_not_compiled_whole(subject: Subject) -> None:
    x = normal(subject, 3, 4)
    subject.matches(_program, x, fullgraph=True)
    _compiles(subject, 1, "of a program without a break")
