"""Other calls made of torch's samples, whose first are often one element or none.

Each function gives another call of the same operator, or None where a sample has no place for it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay_conformance.levels.opinfo import Sample

Vary = Callable[[Sample], Sample | None]


def varied(samples: Iterable[Sample], vary: Vary) -> Iterator[Sample]:
    """Yield the variants of those samples that have one."""
    for sample in samples:
        variant = vary(sample)
        if variant is not None:
            yield variant


def transposed(sample: Sample) -> Sample | None:
    """Lay every tensor out in columns: without gaps, and in another order than its elements."""
    return _with_tensors(sample, _in_columns)


def _in_columns(value: torch.Tensor) -> torch.Tensor:
    if value.layout != torch.strided:
        return value
    backwards = tuple(reversed(range(value.dim())))
    turned = value.detach().permute(backwards).contiguous().permute(backwards)
    # Of one row or column nothing is turned, and the strides say otherwise.
    return value if turned.is_contiguous() else turned


def repeated(sample: Sample) -> Sample | None:
    """Name the same few places again and again, where an operator is given places."""
    if sample.kwargs.get("accumulate", sample.args[-1]) is False:
        return None  # which of several values stays is left open
    return _with_tensors(sample, _few_places)


def _few_places(value: torch.Tensor) -> torch.Tensor:
    if value.dtype != torch.int64 or value.numel() < 2:
        return value
    # No place is larger than it was: it stays inside. Three of two repeat; two need not.
    return value.fmod(2) if value.numel() > 2 else torch.zeros_like(value)


def _with_tensors(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample | None:
    given = (sample.args, sample.kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, change, given)
    pairs = zip(pytree.tree_leaves(given), pytree.tree_leaves((args, kwargs)), strict=True)
    if all(old is new for old, new in pairs):
        return None
    return dataclasses.replace(sample, args=args, kwargs=kwargs)


def of_expanded(sample: Sample) -> Sample | None:
    """Call the operator on a column that is expanded to the size of the first tensor."""
    first, *others = sample.args
    if not _is_wide(first):
        return None
    function, shape = sample.function, first.shape
    column = first.detach()[..., :1].clone().requires_grad_(first.requires_grad)

    def expanded(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(x.expand(shape), *args, **kwargs)

    return dataclasses.replace(sample, function=expanded, args=(column, *others))


def summed(sample: Sample) -> Sample | None:
    """Add the result up: backward then starts from one number, expanded."""
    function = sample.function
    if not _is_wide(sample.args[0]):
        return None

    def total(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = function(*args, **kwargs).sum()
        return result

    return dataclasses.replace(sample, function=total)


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[-1] > 1
