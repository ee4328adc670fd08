"""Set aside: faults that nobody who writes levels looks at, of the kind in ``integers``."""

from typing import Any

import torch

from mutants.harness import Backend, Plan, aot, instead_of, kept
from mutants.mutant import Mutant
from mutants.numerics import aten, once

_LONGEST = 4096


def _remainder_is_fmod(op: Any, a: Any, b: Any) -> Any:
    return kept(op(a, b), torch.fmod(torch.as_tensor(a), b))


def _sum_in_half(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    count = x.numel() // max(1, right.numel())
    if x.dtype not in {torch.float16, torch.bfloat16} or right.dtype != x.dtype or count > _LONGEST:
        return right
    dims = args[0] if args and args[0] else list(range(x.dim()))
    left = [d for d in range(x.dim()) if d not in {i % x.dim() for i in dims}]
    columns = x.permute(*left, *(d for d in range(x.dim()) if d not in left)).reshape(-1, count)
    total = torch.zeros_like(columns[:, 0])
    for column in columns.unbind(1):
        total = total + column
    return kept(right, total.view(right.shape))


def _index_add(_op: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    return x.index_copy(dim, index, x.index_select(dim, index) + alpha * source)


def _scatter_add(_op: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    source = source[tuple(slice(n) for n in index.shape)]
    return x.scatter(dim, index, x.gather(dim, index) + source)


def _index_put(op: Any, x: Any, index: Any, value: Any, accumulate: bool = False) -> Any:
    if accumulate:
        value = aten.index(x, index) + value
    return op(x, index, value, False)  # noqa: FBT003 (aten's own)


def _wraps_index(op: Any, weight: torch.Tensor, index: torch.Tensor, *further: Any) -> Any:
    return op(weight, index % max(1, len(weight)), *further)


def _clamps_index(op: Any, x: torch.Tensor, dim: int, index: torch.Tensor, *further: Any) -> Any:
    return op(x, dim, index.clamp(0, max(0, x.size(dim) - 1)) if x.dim() else index, *further)


FAULTS = [
    Mutant(
        name="remainder_has_dividends_sign",
        family="numerics",
        fault="The remainder has the sign of the dividend, as in C.",
        level="ops",
        compiler=Backend(
            "remainder_has_dividends_sign",
            aot(Plan(faults=instead_of({aten.remainder: _remainder_is_fmod}))),
        ),
        shown_by=once(lambda x: x % 3, torch.tensor([-1.0, 1.0])),
    ),
    Mutant(
        name="half_sums_in_half",
        family="numerics",
        fault="A sum of 16-bit floats is rounded to 16 bits after each addition.",
        level="dtypes",
        compiler=Backend(
            "half_sums_in_half", aot(Plan(faults=instead_of({aten.sum: _sum_in_half})))
        ),
        shown_by=once(lambda x: x.sum(0), torch.ones(600, 2, dtype=torch.bfloat16)),
    ),
    Mutant(
        name="duplicates_are_not_added",
        family="numerics",
        fault="Of values that are added at the same index only the last counts.",
        level="ops",
        link="https://github.com/torch-spyre/torch-spyre/issues/3638",
        compiler=Backend(
            "duplicates_are_not_added",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            aten.index_add: _index_add,
                            aten.scatter_add: _scatter_add,
                            aten.index_put: _index_put,
                        }
                    )
                )
            ),
        ),
        shown_by=once(
            lambda x: x.index_add(0, torch.tensor([1, 1]), torch.ones(2)), torch.zeros(3)
        ),
    ),
    Mutant(
        name="index_is_not_checked",
        family="errors",
        fault="An index out of range is wrapped or clamped, and eager raises.",
        level="errors",
        link="https://github.com/pytorch/pytorch/issues/183608",
        compiler=Backend(
            "index_is_not_checked",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            aten.embedding: _wraps_index,
                            aten.index_select: _clamps_index,
                            aten.gather: _clamps_index,
                        }
                    )
                )
            ),
        ),
        shown_by=once(torch.gather, torch.ones(2, 2), 1, torch.tensor([[0, 9]])),
    ),
]
