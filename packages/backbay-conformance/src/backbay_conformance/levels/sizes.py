"""The suite's own programs of level shapes: each is a way in which a size goes wrong."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

from backbay.proof import Workload, observe
from backbay_conformance.case import Cases, Collection, Failed, NotRunnable
from backbay_conformance.subject import Subject, as_module
from backbay_conformance.watching import Watched

_dynamic = Collection("shapes", "dynamic")
_unbacked = Collection("shapes", "unbacked")
_layout = Collection("shapes", "layout")
DYNAMIC: Mapping[str, Any] = {"dynamic": True}
_MANY = 5
_LARGE = 2**31
"""The first index that 32 bits do not hold."""


def cases() -> Cases:
    """Return these cases."""
    yield from _dynamic
    yield from _unbacked
    yield from _layout


def right_at(
    subject: Subject,
    function: Callable[..., Any],
    inputs: Sequence[tuple[Any, ...]],
    *,
    compiles: int | None = None,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Compile once and hold each call against eager; count how often the backend compiled.

    Raises:
        Failed: a result is wrong, or the backend was given more graphs than ``compiles``.
    """
    module = as_module(function)
    workloads = [Workload(module, x) for x in inputs]
    goldens = [subject.golden(x, train=train) for x in workloads]
    call = subject.compile(module, **(options or {}))
    for golden, workload in zip(goldens, workloads, strict=True):
        subject.judge(golden, observe(call, workload, train=train, seed=subject.seed))
    given = used(subject.watched)
    if compiles is not None and given > compiles:
        reason = f"compiled {given} times for {len(inputs)} sizes, where {compiles} is enough"
        raise Failed("fail_behaviour", reason)


def used(watched: Watched) -> int:
    """Count the graphs whose code ran: Dynamo may compile one and begin anew."""
    return sum(x.runs > 0 for x in watched.graphs)


def _some(subject: Subject, *shapes: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return one input for each shape."""
    return [(torch.randn(x, device=subject.device),) for x in shapes]


@_dynamic.case(needs={"dynamic_shapes"})
def batch_size_is_baked_in(subject: Subject) -> None:
    """Asked for any size, it compiles again for another one."""
    sizes = _some(subject, (4, 6), (7, 6), (5, 6), (16, 6))
    right_at(subject, lambda x: (x * 2).softmax(0), sizes, compiles=1, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def several_sizes_are_baked_in(subject: Subject) -> None:
    """Two sizes of two inputs change, and one is the other's."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu().sum(0)

    sizes = [
        (torch.randn(a, b, device=subject.device), torch.randn(b, 3, device=subject.device))
        for a, b in ((4, 6), (5, 9), (11, 2))
    ]
    right_at(subject, program, sizes, compiles=1, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def automatic_dynamic_compiles_for_every_size(subject: Subject) -> None:
    """Once a size has changed Dynamo makes it a symbol: the second graph must take the rest."""
    sizes = _some(subject, (4, 6), (5, 6), (6, 6), (9, 6))
    right_at(subject, lambda x: x.cumsum(0) + x.shape[0], sizes, compiles=2)


@_dynamic.case(needs={"dynamic_shapes"})
def marked_dimension_is_baked_in(subject: Subject) -> None:
    """A dimension that the user marked is a symbol from the first call on."""
    inputs = _some(subject, (4, 6), (5, 6), (8, 6))
    for (x,) in inputs:
        torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 (its documented name)
    right_at(subject, lambda x: x.exp().mean(0), inputs, compiles=1)


@_dynamic.case(needs={"dynamic_shapes", "training"})
def gradient_bakes_the_size_in(subject: Subject) -> None:
    """Forward and backward are compiled for any batch."""
    model = torch.nn.Linear(6, 5).to(subject.device)
    sizes = _some(subject, (4, 6), (7, 6), (3, 6))
    right_at(subject, model, sizes, compiles=1, train=True, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def size_of_one_is_taken_for_any_size(subject: Subject) -> None:
    """A dimension of one broadcasts; code for more than one must not be used for it."""
    y = torch.randn(7, 5, device=subject.device)
    inputs = [(torch.randn(x, 5, device=subject.device), y) for x in (7, 1, 7)]
    right_at(subject, lambda x, y: x * y + x.shape[0], inputs, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def empty_batch_is_wrong(subject: Subject) -> None:
    """Nothing, between two calls with something."""
    sizes = _some(subject, (5, 3), (0, 3), (4, 3))
    right_at(subject, lambda x: (x.sin() + 1, x.sum(0)), sizes, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def branch_on_a_size_is_baked_in(subject: Subject) -> None:
    """A size decides which way the program goes; Dynamo guards it, and both ways are right."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > _MANY else x.cos()

    right_at(subject, program, _some(subject, (4,), (9,), (5,), (12,)), options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def arithmetic_on_sizes_is_wrong(subject: Subject) -> None:
    """Floor division, remainder and powers of a size, as numbers and as sizes."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        half = x[: n // 2] * (n % 3)
        return half, x.new_ones(n // 2 + n % 3), x / n**0.5, x.reshape(-1)[:: max(1, n // 4)]

    sizes = _some(subject, (4, 2), (7, 2), (12, 2), (9, 2))
    right_at(subject, program, sizes, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def larger_of_two_sizes_is_wrong(subject: Subject) -> None:
    """The larger and the smaller of two sizes, either way round."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        most = torch.sym_max(x.shape[0], y.shape[0])
        least = torch.sym_min(x.shape[0], y.shape[0])
        return x.new_full((least,), 2.0), x.sum() * most

    sizes = [
        (torch.randn(a, device=subject.device), torch.randn(b, device=subject.device))
        for a, b in ((4, 7), (9, 3), (6, 8))
    ]
    right_at(subject, program, sizes, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def size_that_is_returned_is_stale(subject: Subject) -> None:
    """A program that returns a number made of sizes."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, int, tuple[int, ...]]:
        return x + 1, x.shape[0] * 2 + 1, tuple(x.shape)

    sizes = _some(subject, (4, 3), (6, 3), (5, 3))
    right_at(subject, program, sizes, compiles=1, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def factory_takes_an_old_size(subject: Subject) -> None:
    """Tensors made inside, of a size that comes from outside."""

    def program(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        place = torch.arange(n, device=x.device, dtype=x.dtype)
        return x + place * torch.ones(n, n, device=x.device).triu().sum(0)

    right_at(subject, program, _some(subject, (4,), (9,), (5,)), compiles=1, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def joined_sizes_are_wrong(subject: Subject) -> None:
    """Concatenation, padding and repetition make sizes out of sizes."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([x, y, x])
        return joined, F.pad(joined, (1, 2)), x.repeat(2, 3), joined.view(1, -1)

    sizes = [
        (torch.randn(a, 3, device=subject.device), torch.randn(b, 3, device=subject.device))
        for a, b in ((4, 7), (5, 2), (6, 9))
    ]
    right_at(subject, program, sizes, compiles=1, options=DYNAMIC)


@_dynamic.case(needs={"dynamic_shapes"})
def number_that_changes_is_baked_in(subject: Subject) -> None:
    """A whole number as argument: it becomes a symbol, and here an offset."""

    def program(x: torch.Tensor, start: int) -> torch.Tensor:
        return x[start : start + 4] * start

    x = torch.randn(20, 3, device=subject.device)
    right_at(subject, program, [(x, n) for n in (2, 5, 7, 11)], compiles=2)


@contextlib.contextmanager
def _captured() -> Iterator[None]:
    """Let Dynamo capture sizes and numbers that data decides."""
    with torch._dynamo.config.patch(  # noqa: SLF001 (its documented name)
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


@_unbacked.case(needs={"dynamic_shapes"})
def count_of_nonzeros_is_baked_in(subject: Subject) -> None:
    """How many rows come out depends on the data."""
    x = torch.randn(9, 4, device=subject.device)
    inputs = [(x.where(x > bar, 0),) for bar in (0.0, 1.0, -1.0, 9.0)]
    with _captured():
        right_at(subject, lambda x: x.nonzero() * 2, inputs, compiles=1)


@_unbacked.case(needs={"dynamic_shapes"})
def selected_elements_are_wrong(subject: Subject) -> None:
    """As many elements as a mask has."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.masked_select(x, x > 0)
        return kept.exp(), kept.sum()

    inputs = [
        (x + shift,) for (x,), shift in zip(_some(subject, *[(8, 5)] * 3), (0, 1, -2), strict=False)
    ]
    with _captured():
        right_at(subject, program, inputs, compiles=1)


@_unbacked.case(needs={"dynamic_shapes"})
def number_from_a_tensor_is_baked_in(subject: Subject) -> None:
    """A number that a tensor holds, used in arithmetic."""

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * n.item() + 1

    x = torch.randn(6, device=subject.device)
    inputs = [(x, torch.tensor(n, device=subject.device)) for n in (3, 8, -2)]
    with _captured():
        right_at(subject, program, inputs, compiles=1)


@_unbacked.case(needs={"dynamic_shapes"})
def size_from_a_tensor_is_baked_in(subject: Subject) -> None:
    """A number that a tensor holds, used as a size."""

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 0)  # noqa: SLF001 (its documented name)
        torch._check(size <= x.shape[0])  # noqa: SLF001
        return x.narrow(0, 0, size).sum(0) + x.new_ones(size).sum()  # type: ignore[arg-type]

    x = torch.randn(12, 3, device=subject.device)
    inputs = [(x, torch.tensor(n, device=subject.device)) for n in (5, 9, 2)]
    with _captured():
        right_at(subject, program, inputs, compiles=1)


@_unbacked.case(needs={"dynamic_shapes"})
def repeats_from_a_tensor_are_baked_in(subject: Subject) -> None:
    """How often each row is repeated depends on the data."""

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, n, dim=0) * 2

    x = torch.randn(3, 4, device=subject.device)
    counts = ([1, 2, 3], [4, 1, 2], [2, 5, 0])
    inputs = [(x, torch.tensor(n, device=subject.device)) for n in counts]
    with _captured():
        right_at(subject, program, inputs, compiles=1)


@_layout.case()
def large_strides_are_ignored(subject: Subject) -> None:
    """A small tensor spread over a large memory."""
    memory = torch.randn(1 << 20, device=subject.device)
    x = memory.as_strided((5, 7, 3), (100_003, 17, 40_009), 12_345)
    right_at(subject, lambda x: (x.exp().sum(1), x.transpose(0, 2) * 2), [(x,)])


@_layout.case(needs={"training"})
def large_strides_are_ignored_in_backward(subject: Subject) -> None:
    """The same, and its gradient."""
    memory = torch.randn(1 << 18, device=subject.device)
    x = memory.as_strided((5, 7), (30_011, 17), 1_234)
    right_at(subject, lambda x: x.sin() @ x.t(), [(x,)], train=True)


@_layout.case(needs={"dynamic_shapes"})
def offset_of_an_input_is_stale(subject: Subject) -> None:
    """Inputs of one shape that begin elsewhere in one memory: Dynamo compiles once for all."""
    memory = torch.randn(40, device=subject.device)
    inputs = [(memory[start : start + 12].view(3, 4),) for start in (0, 4, 9, 28)]
    right_at(subject, lambda x: x.cos() * 3, inputs, compiles=1)


@_layout.case(needs={"dynamic_shapes"})
def view_has_an_old_offset(subject: Subject) -> None:
    """A view that is returned begins at a place that depends on a size."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.shape[0]
        return x[n // 2 :], x.narrow(0, n - 2, 2).t()

    sizes = _some(subject, (6, 3), (9, 3), (11, 3))
    right_at(subject, program, sizes, compiles=1, options=DYNAMIC)


@_layout.case(needs={"dynamic_shapes"})
def strides_of_another_size_are_wrong(subject: Subject) -> None:
    """Transposed and channels-last inputs, whose strides are symbols too."""
    inputs = [
        (
            torch.randn(a, 5, device=subject.device).t(),
            torch.randn(a, 3, 4, 4, device=subject.device).to(memory_format=torch.channels_last),
        )
        for a in (4, 7, 6)
    ]
    right_at(subject, lambda x, y: (x * 2, y.relu(), y.flatten(1)), inputs, options=DYNAMIC)


@_layout.case(timeout_s=300.0)
def index_beyond_32_bits_wraps(subject: Subject) -> None:
    """A tensor of more than 2**31 elements."""
    if subject.device.type == "cpu":
        raise NotRunnable("on a CPU it takes minutes and gigabytes, and indices have 64 bits")
    x = torch.zeros(_LARGE + 8, dtype=torch.int8, device=subject.device)
    x[-4:] = 5
    got = subject.compile(lambda x: x + 1)(x)
    wanted = torch.tensor([1, 6, 6, 6, 6], dtype=torch.int8, device=subject.device)
    subject.near(got[-5:], wanted, what="the last elements")
    subject.near(got[:3], torch.ones_like(got[:3]), what="the first elements")
