"""Subclasses of tensors: their type, their parts and their own functions must survive."""

from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("context", "subclasses")


def _two(subject: Subject, *shape: int, requires_grad: bool = False) -> TwoTensor:
    pair = TwoTensor(normal(subject, *shape), normal(subject, *shape))
    pair.requires_grad_(requires_grad)
    return pair


def _are_near(subject: Subject, got: Any, wanted: Any, what: str = "result") -> None:
    with subject.must("fail_metadata", f"{what} is a {type(got).__name__}"):
        assert type(got) is type(wanted)
    subject.near((got.a, got.b), (wanted.a, wanted.b), what=what)


@theme.case()
def type_of_a_result_is_lost(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + x.sum(0)

    x = _two(subject, 3, 4)
    _are_near(subject, subject.compile(program)(x), program(x))


@theme.case()
def second_part_is_computed_from_the_first(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y.t(), x.t(), x + 1

    x, y = _two(subject, 3, 4), _two(subject, 5, 4)
    for got, wanted in zip(subject.compile(program)(x, y), program(x, y), strict=True):
        _are_near(subject, got, wanted)


@theme.case()
def plain_tensor_beside_a_subclass(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, y * 2

    x, y = _two(subject, 3, 4), normal(subject, 4)
    got, wanted = subject.compile(program)(x, y), program(x, y)
    _are_near(subject, got[0], wanted[0])
    with subject.must("fail_metadata", "a plain result became a subclass"):
        assert type(got[1]) is torch.Tensor
    subject.near(got[1], wanted[1])


@theme.case(needs={"training"})
def gradient_of_a_subclass_is_plain(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x = _two(subject, 3, 4, requires_grad=True)
    wanted = TwoTensor(x.a.detach().clone(), x.b.detach().clone()).requires_grad_()
    subject.compile(program)(x).backward()
    program(wanted).backward()
    _are_near(subject, x.grad, wanted.grad, "gradient")


@theme.case(needs={"training"})
def parameter_that_is_a_subclass(subject: Subject) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(_two(subject, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    model, x = Scaled(), normal(subject, 3, 4)
    got, wanted = subject.compile(model)(x), model(x)
    _are_near(subject, got, wanted)
    (first,) = torch.autograd.grad(got.sum(), model.weight)
    (second,) = torch.autograd.grad(wanted.sum(), model.weight)
    _are_near(subject, first, second, "gradient")


@theme.case(needs={"mutation"})
def change_of_a_subclass_is_dropped(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = _two(subject, 3)
    wanted = TwoTensor(x.a.clone(), x.b.clone())
    _are_near(subject, subject.compile(program)(x), program(wanted))
    _are_near(subject, x, wanted, "input after the call")


@theme.case()
def subclass_and_plain_tensor_take_turns(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 2

    call, two, plain = subject.compile(program), _two(subject, 4), normal(subject, 4)
    for _ in range(2):
        _are_near(subject, call(two), program(two))
        subject.near(call(plain), program(plain))


@theme.case(needs={"dynamic_shapes"})
def sizes_of_a_subclass_are_those_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * x.shape[0]

    call = subject.compile(program, dynamic=True)
    for size in (3, 5, 8):
        x = _two(subject, size, 4)
        _are_near(subject, call(x), program(x))


class Labelled(torch.Tensor):
    """Has functions of its own."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Add as subtraction."""
        if func in {torch.add, torch.Tensor.add}:
            func = torch.sub
        return super().__torch_function__(func, types, args, kwargs or {})


@theme.case()
def torch_function_of_a_subclass_is_not_called(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x * 2, x)

    x = normal(subject, 4).as_subclass(Labelled)
    got, wanted = subject.compile(program)(x), program(x)
    with subject.must("fail_metadata", "a result is of another type"):
        assert type(got) is type(wanted)
    subject.near(got.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


@theme.case()
def ragged_tensor_is_computed_as_a_dense_one(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    parts = [numbered(subject, n, 3) for n in (2, 4, 1)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    got, wanted = subject.compile(program)(x), program(x)
    subject.near(list(got.unbind()), list(wanted.unbind()))
