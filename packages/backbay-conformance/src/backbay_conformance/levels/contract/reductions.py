"""Reductions of NaN, of nothing, of equals, and of very much."""

import math

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal

theme = Collection("contract", "reductions")

NAN = math.nan
Tensors = tuple[torch.Tensor, ...]


@theme.agrees(
    lambda s: given(s, [[1.0, NAN, 3.0, 2.0], [NAN, 0.0, -1.0, 5.0], [0.0, 0.0, -2.0, -3.0]])
)
def largest_forgets_nan(x: torch.Tensor) -> Tensors:
    most = (x.amax(1), x.amin(0), x.max(), x.max(1).values, x.aminmax(dim=1).max)
    return (*most, x.argmax(1), x.argmin(1), x.cummax(1).values, x.sum(1), x.any(1))


@theme.agrees(lambda s: given(s, [[1.0, NAN, 3.0], [NAN, NAN, -1.0], [0.5, 2.0, NAN]]))
def nan_is_not_left_out(x: torch.Tensor) -> Tensors:
    return x.nansum(1), x.nanmean(0), x.nan_to_num(7.0), x.nansum()


@theme.agrees(
    lambda s: given(s, [[3, 1, 3, 1], [2, 2, 2, 2], [0, 5, 0, 5]]).float(), needs={"int64"}
)
def equals_give_another_index(x: torch.Tensor) -> Tensors:
    ordered = (x.sort(dim=1, stable=True).indices, x.argsort(dim=0, stable=True))
    return (x.argmax(1), x.argmin(0), x.max(1).indices, x.min(0).indices, *ordered)


@theme.agrees(lambda s: normal(s, 5, 0))
def reduction_of_nothing(x: torch.Tensor) -> Tensors:
    sums = (x.sum(1), x.mean(1), x.prod(1), x.sum(), x.logsumexp(1))
    return (*sums, x.all(1), x.any(1), x.sum(0), x.cumsum(1))


# So few that a variance with another correction is another number.
@theme.agrees(lambda s: normal(s, 21, 1))
def one_element_has_no_variance(x: torch.Tensor) -> Tensors:
    of_all = (x.var(), x.std(), *torch.var_mean(x), x.var(correction=0), x.var(0, correction=2))
    return (*of_all, x.var(1), x.std(1), x.var(1, correction=0), x.var(0), x.mean(1))


@theme.agrees(lambda s: normal(s, 3, 5, 7))
def dimensions_are_kept_or_dropped_otherwise(x: torch.Tensor) -> Tensors:
    sums = (x.sum((0, 2)), x.sum(-1, keepdim=True), x.mean((-3, -1), keepdim=True))
    return (*sums, x.amax((1, 2)), x.var((0, 1), correction=0), x.norm(dim=1), x.sum(()))


@theme.agrees(lambda s: torch.rand(70001, device=s.device) + 1)
def long_sum_loses_digits(x: torch.Tensor) -> Tensors:
    return x.sum(), x.mean(), x.cumsum(0), (x * x).sum().sqrt(), x.var()


@theme.agrees(
    lambda s: (
        given(s, [[0.0, NAN, -0.0], [1.0, 2.0, 3.0], [0.0] * 3]),
        given(s, [[True, False, True], [True, True, True], [False, False, False]]),
    ),
    needs={"int64", "bool"},
)
def truth_of_a_row(x: torch.Tensor, b: torch.Tensor) -> Tensors:
    counts = (b.sum(1), torch.count_nonzero(b, 0), b.cumsum(1))
    return (b.all(1), b.any(0), x.any(), x.all(1), b.all(), *counts)


@theme.agrees(lambda s: normal(s, 9, 67))
def running_results_start_again(x: torch.Tensor) -> Tensors:
    return x.cumsum(1), x.cumsum(0), x.cumprod(1), x.cummax(1).values, x.logcumsumexp(0)


# All different, so that no tie is broken.
@theme.agrees(lambda s: torch.randperm(9 * 33, device=s.device).reshape(9, 33).float())
def chosen_elements_are_not_the_largest(x: torch.Tensor) -> Tensors:
    top = x.topk(4, 1)
    return top.values, top.indices, x.sort(1, descending=True).values, x.median(1).values
