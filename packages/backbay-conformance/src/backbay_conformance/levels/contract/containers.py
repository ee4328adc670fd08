"""What goes in and comes out beside tensors: containers, plain values, sizes, many, and none."""

import collections
import dataclasses
from typing import Any

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("contract", "containers")


class _Pair(collections.namedtuple("_Pair", "left right")):  # noqa: PYI024 (no types at run time)
    __slots__ = ()


@dataclasses.dataclass
class _Output:
    logits: torch.Tensor
    extra: torch.Tensor | None
    label: str


@theme.agrees(lambda s: normal(s, 4))
def container_comes_back_as_another(x: torch.Tensor) -> Any:
    return {
        "b": [x + 1, (x * 2, None)],
        "a": {"inner": x.sum(), 3: (x - 1,)},
        "pair": _Pair(x.sin(), [x.cos()]),
        "none": None,
        "empty": [(), {}, []],
    }


@theme.agrees(lambda s: normal(s, 4))
def dataclass_comes_back_as_another_object(x: torch.Tensor) -> Any:
    return _Output(logits=x * 2, extra=None, label="cat"), [_Output(x + 1, x.sum(), "dog")]


@theme.case()
def one_tensor_comes_back_as_a_tuple(subject: Subject) -> None:
    def alone(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def in_a_tuple(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * 2,)

    def in_a_list(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2]

    for program in (alone, in_a_tuple, in_a_list):
        subject.agrees(program, normal(subject, 4))


@theme.agrees(lambda s: normal(s, 4, 3))
def plain_values_are_turned_into_tensors(x: torch.Tensor) -> Any:
    return x + 1, 3, 2.5, "text", True, None, x.dtype, x.shape, x.dim(), x.device, 1j


@theme.case()
def nested_inputs_are_taken_apart(subject: Subject) -> None:
    def program(batch: dict[str, Any], *rest: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        first, (second, none) = batch["pair"]
        total = first * scale + second
        return total if none is not None else total - sum(rest) + batch["list"][1]

    x = numbered(subject, 4)
    batch = {"pair": (x, (x * 2, None)), "list": [x, x + 5]}
    subject.agrees(program, batch, x, x * 3, scale=0.5)


@theme.case()
def plain_inputs_are_frozen_at_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor, n: int, f: float, flag: bool, how: str) -> Any:
        y = x * n + f if flag else x - n
        return (y.sum() if how == "sum" else y.mean()), n * 2, f

    call, x = subject.compile(program), normal(subject, 4)
    sums = [(n, f, True, "sum") for n, f in ((2, 0.5), (3, 0.5), (5, 1.5))]
    for plain in (*sums, (5, 2.5, False, "mean"), (0, 0.0, True, "mean"), sums[0]):
        subject.near(call(x, *plain), program(x, *plain))


@theme.case()
def sizes_are_returned_as_those_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Any:
        return x * 2, x.shape, x.size(0) + 1, x.numel(), x.stride(), len(x)

    call = subject.compile(program)
    for size in (3, 5, 8, 13):
        x = normal(subject, size, 4)
        got, wanted = call(x), program(x)
        subject.near(got[0], wanted[0])
        with subject.must("fail_metadata", "a size that is returned is not the tensor's"):
            assert got[1:] == wanted[1:]
            assert type(got[2]) is int


@theme.case(needs={"dynamic_shapes"})
def symbolic_sizes_are_returned_as_symbols(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.sum(0), x.size(0), x.size(0) * 2 + x.size(1), x.shape

    call = subject.compile(program, dynamic=True)
    for shape in ((3, 4), (5, 7), (8, 2)):
        x = normal(subject, *shape)
        got, wanted = call(x), program(x)
        subject.near(got[0], wanted[0])
        with subject.must("fail_metadata", "a size that is returned is not the tensor's"):
            assert tuple(got[1:]) == wanted[1:]
            assert all(type(size) is int for size in (*got[1:3], *got[3]))


@theme.agrees(lambda s: (*(normal(s, 3) for _ in range(64)),))
def many_inputs(*inputs: torch.Tensor) -> torch.Tensor:
    return torch.stack([x * i for i, x in enumerate(inputs)]).sum(0) - inputs[37]


@theme.agrees(lambda s: normal(s, 3))
def many_results(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * i + 1 for i in range(64)]


@theme.case()
def program_without_inputs(subject: Subject) -> None:
    device = subject.device

    def program() -> tuple[torch.Tensor, ...]:
        n = torch.arange(5, device=device)
        return n, torch.ones(2, 3, device=device) * 2, torch.linspace(0, 1, 4, device=device), n[1:]

    subject.agrees(program, calls=2)


@theme.agrees(lambda s: normal(s, 4), calls=2)
def result_that_depends_on_no_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.zeros(3, device=x.device), torch.full((2,), 7, device=x.device), x.new_ones(2)


@theme.agrees(lambda s: (*(normal(s, 4, 4) for _ in range(3)), None))
def unused_inputs_and_results(
    _x: torch.Tensor, unused: torch.Tensor, other: torch.Tensor, _none: None
) -> torch.Tensor:
    _dead = unused.exp() @ unused
    return other * 2


@theme.agrees(lambda s: normal(s, 7, 9))
def large_graph(x: torch.Tensor) -> torch.Tensor:
    y = x
    for i in range(100):
        y = (y * 0.99 + x).sin() if i % 2 else y - i * 1e-3
    return y


@theme.case()
def module_inside_containers(subject: Subject) -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.list = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            self.dict = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 2), "b": torch.nn.Tanh()})
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            for layer in self.list:
                x = x + layer(x) * self.weights[0]
            return {name: layer(x) for name, layer in self.dict.items()}

    subject.agrees(Branches().to(subject.device), normal(subject, 3, 4))
