"""What a program says to the compiler: not here, as one operator, once and for all."""

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("context", "directives")


@torch.compiler.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    """Stand in the graph as one function."""
    torch._assert(x.dim() == 1, "one dimension")  # noqa: SLF001 (Dynamo does not look in here)
    return x.sin() * 2


@theme.agrees(lambda s: normal(s, 4))
def function_that_is_allowed_in_the_graph(x: torch.Tensor) -> torch.Tensor:
    return opaque(x * 2) + 1


@theme.case()
def disabled_method_is_compiled(subject: Subject) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.compiled = torch.nn.Linear(4, 4), list[bool]()

        @torch.compiler.disable
        def apart(self, x: torch.Tensor) -> torch.Tensor:
            self.compiled.append(torch.compiler.is_compiling())
            return self.layer(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.apart(self.layer(x).relu()) * 2

    model, x = Model().to(subject.device), normal(subject, 3, 4)
    call = subject.compile(model)
    for _ in range(2):
        subject.near(call(x), model(x))
    with subject.must("fail_behaviour", "a disabled method was traced"):
        assert not any(model.compiled)


@theme.case()
def result_that_is_assumed_constant(subject: Subject) -> None:
    calls: list[int] = []

    @torch.compiler.assume_constant_result
    def constant() -> int:
        calls.append(1)
        return 7

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * constant()

    call, x = subject.compile(program), normal(subject, 4)
    for _ in range(3):
        subject.near(call(x), x * 7)


@theme.case()
def program_is_not_told_that_it_is_compiled(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_compiling() else x * 3

    x = normal(subject, 4)
    subject.near(subject.compile(program)(x), x * 2)
    with subject.must("fail_behaviour", "is_compiling holds after the call"):
        assert not torch.compiler.is_compiling()


@theme.case()
def check_of_a_value_is_dropped(subject: Subject) -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        torch._check(n > 0, lambda: "n must be positive")  # noqa: SLF001 (its documented name)
        return x * n

    call, x, refused = subject.compile(program), normal(subject, 4), False
    subject.near(call(x, 3), x * 3)
    try:
        call(x, -1)
    except Exception:  # noqa: BLE001 (eager's type, or Dynamo's)
        refused = True
    with subject.must("lost_validation", "torch._check does not raise"):
        assert refused
    subject.near(call(x, 3), x * 3)


@theme.case()
def step_that_is_marked(subject: Subject) -> None:
    call, x = subject.compile(lambda x: x.sin() + 1), normal(subject, 4)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        subject.near(call(x), x.sin() + 1)
