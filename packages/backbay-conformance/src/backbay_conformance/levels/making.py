"""What hand-written cases share: inputs, threads, and the rule for results computed by a case."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from backbay.proof import compare
from backbay_conformance.case import Failed
from backbay_conformance.record import Status
from backbay_conformance.subject import Subject
from backbay_conformance.travelling import travelled


def normal(
    subject: Subject,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Return normal draws on the subject's device; the case's seed decides them."""
    drawn = torch.randn(*shape, device=subject.device, dtype=dtype)
    return drawn.requires_grad_(requires_grad)


def given(subject: Subject, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of these values on the subject's device."""
    return torch.tensor(values, device=subject.device, dtype=dtype)


def numbered(subject: Subject, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return 0, 1, 2 and so on in a shape: every element is told from every other."""
    count = torch.Size(shape).numel()
    return torch.arange(count, device=subject.device, dtype=dtype).reshape(shape)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Have torch use this many threads on CPUs in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def judged(
    subject: Subject,
    got: Mapping[str, torch.Tensor],
    eager: Mapping[str, torch.Tensor],
    truth: Mapping[str, torch.Tensor],
    *,
    status: Status = "fail_value",
) -> None:
    """Hold what a case computed by itself against eager's and the float64 truth, by the rule.

    Args:
        subject: the backend.
        got: what the backend gave, by name.
        eager: what eager gave.
        truth: the same computed in float64.
        status: what a wrong number is called.

    Raises:
        Failed: the worst of what is not right.
    """
    kept, true = travelled(eager), travelled(truth)

    def how(given: Any) -> None:
        for name, wanted in kept.items():
            if name not in given:
                raise Failed("fail_metadata", f"{name} is missing")
            verdict = compare(given[name], wanted, true[name], name=name)
            if not verdict.passed:
                kind: Status = "fail_metadata" if verdict.kind == "metadata" else status
                raise Failed(kind, f"{name}: {verdict.reason}")

    subject.answers.answer(got, how)


def called(function: Callable[..., Any], batches: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Call a function on each tuple of inputs, and return all results."""
    return [function(*batch) for batch in batches]


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
