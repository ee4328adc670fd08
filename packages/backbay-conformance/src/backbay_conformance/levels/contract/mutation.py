"""What the program changes in place must be changed, in its order, and nothing else."""

from collections.abc import Callable
from typing import Any

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("contract", "mutation")

Tensors = tuple[torch.Tensor, ...]
_NEEDS = {"mutation"}


@theme.agrees(lambda s: (normal(s, 3, 5), given(s, [3, 4])), needs=_NEEDS, calls=2)
def change_of_an_input_is_dropped(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    n.mul_(2)
    return x.sum() + n[0]


@theme.agrees(lambda s: numbered(s, 4, 5), needs=_NEEDS)
def change_of_a_view_of_an_input_is_dropped(x: torch.Tensor) -> torch.Tensor:
    x[1:, 2].mul_(2)
    x.t()[0].add_(10)
    x.view(-1)[::7].zero_()
    x.detach()[3].neg_()
    return x * 2


@theme.agrees(lambda s: (normal(s, 3, 5), normal(s, 5)), calls=2)
def input_is_changed_that_eager_leaves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.add_(y)
    z[0].mul_(2)
    return z.relu_().sub_(1)


@theme.agrees(lambda s: numbered(s, 4, 4))
def change_of_a_view_inside_does_not_reach_its_base(x: torch.Tensor) -> Tensors:
    y = x * 2
    row, column = y[1], y.t()[2]
    row.zero_()
    before = column.sum()
    column.add_(5)
    return y, row, before, y.diagonal().fill_(9.0).sum()


@theme.agrees(lambda s: numbered(s, 4, 3))
def part_that_was_written_is_read_as_it_was(x: torch.Tensor) -> Tensors:
    y = torch.zeros_like(x)
    for number in range(2):
        y[0] += x[0]
        y[:, 1] *= 3 + number
        y[1:3, 1:] -= x[:2, 1:]
        y[:, 1] += y[3, 0].clone()
    return y, y[1:3, 1:] * 2


@theme.agrees(lambda s: numbered(s, 3, 4), needs=_NEEDS)
def reads_and_writes_change_places(x: torch.Tensor) -> Tensors:
    first = x.sum(0)
    view = x[0]
    x.mul_(2)
    second = x.sum(0) + view
    x[1] = first
    third = x.clone()
    x.sub_(second)
    return first, second, third, x.sum()


@theme.case(needs=_NEEDS)
def input_that_is_changed_and_returned_is_a_copy(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        y = x.mul_(3)
        return x, y, y.view(-1), x + 1

    x = numbered(subject, 3, 4)
    subject.agrees(program, x)
    results = subject.compile(program)(x)
    with subject.must("fail_metadata", "an input that is changed and returned is another tensor"):
        assert results[0] is x
        assert results[2].data_ptr() == x.data_ptr()


_WRITERS = ("copy_", "index_put_", "scatter_", "masked_fill_", "setitem", "index_add_", "out", "[]")


@theme.agrees(
    lambda s: (
        {name: numbered(s, 5, 4) for name in _WRITERS},
        given(s, [4, 0, 2]),
        normal(s, 3, 4),
    ),
    needs=_NEEDS,
)
def operator_that_writes_does_not(
    written: dict[str, torch.Tensor], i: torch.Tensor, v: torch.Tensor
) -> list[torch.Tensor]:
    for name, x in written.items():
        _write(name, x, i, v)
    return [x.sum(0) for x in written.values()]


def _write(name: str, x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    if name == "copy_":
        x[1:4].copy_(v)
    elif name == "index_put_":
        x.index_put_((i,), v, accumulate=True)
    elif name == "scatter_":
        x.scatter_(0, i.unsqueeze(1).expand(3, 4), v)
    elif name == "masked_fill_":
        x.masked_fill_(x > 7, -1.0)
    elif name == "setitem":
        x[i] = v
        x[:, 1] = 3.0
    elif name == "index_add_":
        x.index_add_(0, i, v, alpha=2)
    elif name == "out":
        torch.mul(v, 2, out=x[:3])
    else:
        x[x < 3] = 0.5


@theme.agrees(lambda s: (numbered(s, 5, 4).t(), numbered(s, 4, 10)[1:, ::3]), needs=_NEEDS)
def change_of_a_strided_input_is_dropped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y.mul_(x[0, 0])
    return x + 1


@theme.case(needs=_NEEDS)
def change_is_not_seen_through_another_input(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        before = y.sum()
        x.add_(1)
        return before, y * 2, x.sum()

    _as_eager(subject, program, lambda base: (base, base[1:3]))
    _as_eager(subject, program, lambda base: (base[0], base.t()))


@theme.case(needs=_NEEDS)
def overlapping_inputs_are_both_changed(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y.add_(1)
        x.sub_(3)
        return x + y

    def overlapping(base: torch.Tensor) -> Tensors:
        flat = base.view(-1)
        return flat[:8], flat[4:12]

    _as_eager(subject, program, overlapping)


@theme.case(needs=_NEEDS)
def one_tensor_is_passed_twice_and_changed(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        x.add_(1)
        y.mul_(2)
        return x + y, x - y

    _as_eager(subject, program, lambda base: (base, base))


@theme.case(needs=_NEEDS)
def change_in_the_second_call_is_dropped(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x.sum()

    call, x, wanted = subject.compile(program), numbered(subject, 6), numbered(subject, 6)
    for _ in range(4):
        subject.near(call(x), program(wanted))
        subject.near(x, wanted, what="input after the call")


@theme.agrees(lambda s: [normal(s, 3), normal(s, 4), normal(s, 5)], needs=_NEEDS)
def list_of_inputs_is_not_changed(tensors: list[torch.Tensor]) -> torch.Tensor:
    torch._foreach_mul_(tensors, 2.0)
    tensors[1].zero_()
    return tensors[0] + 1


@theme.case(needs=_NEEDS)
def parameter_is_not_changed_under_no_grad(subject: Subject) -> None:
    class Moving(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, device=subject.device))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5).add_(x.mean(0))
            return x * 2

    got, wanted, x = Moving(), Moving(), numbered(subject, 3, 4)
    call = subject.compile(got)
    for _ in range(2):
        subject.near(call(x), wanted(x))
        subject.near(got.weight, wanted.weight, what="parameter")


class _Counting(torch.nn.Module):
    count: torch.Tensor
    mean: torch.Tensor
    last: torch.Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("mean", torch.zeros(4, device=device))
        self.register_buffer("last", torch.zeros(3, 4, device=device), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean.lerp_(x.mean(0), 0.25)
        self.last.copy_(x)
        return x / self.count + self.mean


@theme.case(needs=_NEEDS)
def buffer_is_not_updated(subject: Subject) -> None:
    subject.agrees(_Counting(subject.device), normal(subject, 3, 4), calls=2)


@theme.case(needs=_NEEDS)
def buffer_of_the_first_call_is_kept(subject: Subject) -> None:
    got, wanted = _Counting(subject.device), _Counting(subject.device)
    call = subject.compile(got)
    for _ in range(3):
        x = normal(subject, 3, 4)
        subject.near(call(x), wanted(x))
        subject.near(dict(got.named_buffers()), dict(wanted.named_buffers()), what="buffers")


@theme.case(needs=_NEEDS | {"training"})
def running_statistics_are_not_updated(subject: Subject) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.BatchNorm1d(6 * 9, momentum=0.3),
    ).to(subject.device)  # fmt: skip
    subject.agrees(model, normal(subject, 4, 3, 5, 5), train=True, calls=2)


@theme.case(needs=_NEEDS)
def running_statistics_in_inference(subject: Subject) -> None:
    norm = torch.nn.BatchNorm1d(5).to(subject.device)
    subject.agrees(norm, normal(subject, 7, 5) * 3 + 1)
    subject.agrees(norm.eval(), normal(subject, 7, 5) * 3 + 1)


@theme.case()
def objects_of_the_program_are_not_changed(subject: Subject) -> None:
    class Remembering(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.seen: list[torch.Tensor] = []
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor, notes: dict[str, torch.Tensor]) -> torch.Tensor:
            self.calls += 1
            self.last = x * self.calls
            self.seen.append(self.last.sum())
            notes["mean"] = x.mean()
            return x + self.calls

    got, wanted, x = Remembering(), Remembering(), normal(subject, 5)
    call = subject.compile(got)
    for _ in range(3):
        notes: tuple[dict[str, torch.Tensor], ...] = ({}, {})
        subject.near(call(x, notes[0]), wanted(x, notes[1]))
        subject.near((got.last, got.seen, notes[0]), (wanted.last, wanted.seen, notes[1]))
        with subject.must("fail_mutation", "an attribute that the program sets is not set"):
            assert got.calls == wanted.calls


def _as_eager(
    subject: Subject,
    program: Callable[..., Any],
    views: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> None:
    """Compare results, and the memory under inputs that share it; all numbers are exact."""
    ours, theirs = numbered(subject, 4, 4), numbered(subject, 4, 4)
    got, wanted = subject.compile(program)(*views(ours)), program(*views(theirs))
    subject.near(got, wanted)
    said = "inputs that share memory are not left as eager leaves them"
    subject.same(ours, theirs, status="fail_mutation", what=said)
