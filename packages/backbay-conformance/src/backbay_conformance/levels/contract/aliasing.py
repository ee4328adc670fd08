"""Which tensors share memory, in and out: a view must stay one, and a copy too."""

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal, numbered, shares_memory
from backbay_conformance.subject import Subject

theme = Collection("contract", "aliasing")

Tensors = tuple[torch.Tensor, ...]


@theme.case()
def input_is_returned_as_a_copy(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return x, x + 1

    x = normal(subject, 3, 5)
    subject.agrees(program, x)
    with subject.must("fail_metadata", "an input that is returned is another tensor"):
        assert subject.compile(program)(x)[0] is x


@theme.case()
def view_of_an_input_is_a_copy(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return x.view(-1), x.t(), x[1:, ::2], x.detach(), x.unsqueeze(0), x + 1

    x = numbered(subject, 4, 6)
    subject.agrees(program, x)
    subject.compile(program)(x)[2].fill_(-1.0)
    with subject.must("fail_metadata", "writing to a view of an input does not reach the input"):
        assert x[1, 2] == -1
        assert x[1, 1] == 7


@theme.agrees(lambda s: numbered(s, 4, 6))
def view_of_a_view_is_a_copy(x: torch.Tensor) -> Tensors:
    one = x.view(6, 4)
    two = one.t()[1:]
    return one[2], two, two.diagonal(), one * 2


@theme.agrees(lambda s: numbered(s, 6, 10)[2:5, 1:9:2])
def views_of_a_strided_input_begin_elsewhere(x: torch.Tensor) -> Tensors:
    return x[1:], x.t()[2], x.unflatten(1, (2, -1)), x.expand(2, 3, 4), x * 1.5


@theme.agrees(lambda s: normal(s, 3, 5))
def copy_shares_memory_with_its_input(x: torch.Tensor) -> Tensors:
    copies = (x.clone(), x * 1, x + 0, x / 1, x.to(x.dtype, copy=True))
    return (*copies, x.t().contiguous(), x.t().reshape(-1), torch.cat([x]), x[[0, 1, 2]])


@theme.agrees(lambda s: numbered(s, 3, 5), needs={"mutation"})
def copy_of_what_needs_none_is_changed_with_its_source(x: torch.Tensor) -> Tensors:
    copies = (F.pad(x, (0, 0)), x.repeat(1, 1), x.flip([]), x.roll(0, 0), torch.cat([x]))
    for number, copy in enumerate(copies):
        copy.add_(number + 1)
    return (*copies, x * 1)


@theme.agrees(lambda s: normal(s, 3, 5))
def what_is_no_copy_in_eager_is_one(x: torch.Tensor) -> Tensors:
    return x.contiguous(), x.to(x.dtype), x.float(), x.reshape(-1), x.expand(3, 5), x.sin()


@theme.case()
def outputs_do_not_share_memory(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        y = x * 2
        return y, y.view(-1), y[1]

    results = subject.compile(program)(numbered(subject, 3, 4))
    with subject.must("fail_metadata", "views of one result do not share memory with it"):
        assert all(shares_memory(results[0], other) for other in results[1:])
    results[0].zero_()
    with subject.must("fail_metadata", "writing to a result does not reach its views"):
        assert not results[1].any()
        assert not results[2].any()


@theme.case()
def outputs_share_memory_that_they_do_not(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return x + 1, x + 1, (x + 1).clone(), torch.zeros_like(x), torch.zeros_like(x)

    x = normal(subject, 3, 4)
    results = subject.compile(program)(x)
    results[0].fill_(5.0)
    results[3].fill_(6.0)
    subject.same(
        results[1:3] + results[4:],
        (x + 1, x + 1, torch.zeros_like(x)),
        status="fail_metadata",
        what="results that eager computes apart share memory",
    )


@theme.case()
def result_that_is_returned_twice(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        y = x.cos()
        return y, x, y, x

    x = normal(subject, 7)
    subject.agrees(program, x)
    results = subject.compile(program)(x)
    with subject.must("fail_metadata", "one tensor that is returned twice comes back as two"):
        assert results[0] is results[2]
        assert results[1] is results[3] is x


@theme.agrees(lambda s: numbered(s, 4, 5))
def result_is_a_view_of_what_nobody_sees(x: torch.Tensor) -> Tensors:
    y = x * 2
    return y.t(), (x + 1)[:, 1:], y.sum(0).unsqueeze(0), (x - 1).view(-1)[3:]


@theme.case()
def one_tensor_is_passed_twice(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        return x + y * 2, x @ y.t(), x

    x = normal(subject, 3, 4)
    subject.matches(program, (x, x))


@theme.case()
def inputs_are_one_in_the_first_call_and_two_later(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 3 - y

    call, a, b = subject.compile(program), normal(subject, 5), normal(subject, 5)
    for x, y in ((a, a), (a, b), (b, b), (b, a)):
        subject.near(call(x, y), program(x, y))


@theme.case()
def inputs_that_overlap(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        return x * 2 + y, y, x.view(-1)

    base = numbered(subject, 20)
    x, y = base[:12].view(3, 4), base[4:16].view(3, 4)
    results = subject.compile(program)(x, y)
    subject.near(results, program(x, y))
    with subject.must("fail_metadata", "a view of an input is a copy"):
        assert results[1] is y
        assert results[2].data_ptr() == x.data_ptr()


@theme.case()
def result_is_the_next_input(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return x.sin() + x, x.t()

    call, got, wanted = subject.compile(program), normal(subject, 4, 4), None
    wanted = got.clone()
    for _ in range(4):
        got, wanted = call(got)[0], program(wanted)[0]
        got, wanted = call(got)[1], program(wanted)[1]
    subject.near(got, wanted)
