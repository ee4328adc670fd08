"""Operators that an engine gets in the place of others: torch's core ATen, and further ones."""

import functools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.utils import _pytree as pytree

NORMS = (torch.ops.aten.native_layer_norm, torch.ops.aten.native_group_norm)
"""Of these many engines give the first result only; training reads the others, too."""


@functools.cache
def core_aten(*further: Any) -> Mapping[Any, Any]:
    """Return torch's decompositions to core ATen, and what engines need beside them.

    Batch norm in training is taken apart: few have it with its running statistics, and some that
    seem to leave them as they were. So is a squeeze of several dimensions, which torch's
    decompositions make, and few have. Extremes and variances of everything name all dimensions, and
    variances their correction, which some engines forget otherwise. Sums of integers and of
    booleans are taken in the dtype of their result, to which some engines don't convert; ``any``
    and ``all`` are taken of booleans; a product of booleans is a conjunction, and a sum of two a
    disjunction. Pooling has a batch, which pooling along one dimension comes without. A scattered
    source is as large as its index.

    Args:
        further: operators that torch's decompositions take apart, too; for those that an engine
            has, and computes otherwise.
    """
    aten = torch.ops.aten
    sums = (aten.sum.dim_IntList, aten.cumsum.default)
    products = (aten.prod.default, aten.prod.dim_int, aten.cumprod.default)
    training = [aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward]  # noqa: SLF001 (its name)
    truths = (aten.any.default, aten.any.dim, aten.any.dims)
    poolings = (aten.avg_pool2d.default, aten.max_pool2d_with_indices.default)
    extremes = (aten.amax.default, aten.amin.default)
    variances = (aten.var.correction, aten.var_mean.correction)
    scatters = (aten.scatter.src, aten.scatter_add.default, aten.scatter_reduce.two)
    return {
        **core_aten_decompositions(),
        **get_decompositions([*training, *further]),
        **{x: functools.partial(_over_all, x) for x in extremes},
        **{x: functools.partial(_variance, x) for x in variances},
        **{x: functools.partial(_with_source_cut, x) for x in scatters},
        **{x: functools.partial(_widened, x) for x in (*sums, *products)},
        **{x: functools.partial(_of_booleans, x) for x in truths},
        **{x: functools.partial(_with_batch, x) for x in poolings},
        aten.add.Tensor: _sum,
        aten.mul.Tensor: _product,
        aten.squeeze.dims: _squeezed,
    }


def _over_all(
    reduction: Any, x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False
) -> Any:
    """Return a reduction of everything as one that names its dimensions: some want them named."""
    if dim:
        return NotImplemented
    if not x.ndim:
        return x.clone()
    return reduction(x, list(range(x.ndim)), keepdim)


def _variance(
    variance: Any,
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    """Return a variance that names its dimensions and its correction."""
    named = list(dim or range(x.ndim))
    if named == dim and correction is not None:
        return NotImplemented
    counted = 1 if correction is None else correction
    return variance(x, named, correction=counted, keepdim=keepdim)


def _with_source_cut(
    scatter: Any,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Return a scatter of what its index has a place for: some engines want no more."""
    if index.shape == source.shape or index.ndim != source.ndim:
        return NotImplemented
    for d, size in enumerate(index.shape):
        source = source.narrow(d, 0, size)
    return scatter(x, dim, index, source, *arguments, **keywords)


def _widened(reduction: Any, x: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    """Return a sum or product of what is converted first."""
    usual = x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
    result = keywords.get("dtype") or usual
    if x.dtype == result:
        return NotImplemented
    return reduction(x.to(result), *arguments, **keywords)


def _of_booleans(reduction: Any, x: torch.Tensor, *arguments: Any) -> Any:
    return NotImplemented if x.dtype == torch.bool else reduction(x != 0, *arguments)


def _squeezed(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    gone = {x % tensor.ndim for x in dims} if tensor.ndim else set()
    return tensor.view([x for d, x in enumerate(tensor.shape) if d not in gone or x != 1])


def _with_batch(pooling: Any, x: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    if x.ndim != 3:  # noqa: PLR2004 (channels, height, width)
        return NotImplemented
    made = pooling(x.unsqueeze(0), *arguments, **keywords)
    return pytree.tree_map(lambda y: y.select(0, 0), made)


def _product(a: Any, b: Any) -> Any:
    return torch.logical_and(a, b) if _are_booleans(a, b) else NotImplemented


def _sum(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return torch.logical_or(a, b) if _are_booleans(a, b) and alpha == 1 else NotImplemented


def _are_booleans(*values: Any) -> bool:
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in values)


def _batch_norm(  # noqa: PLR0917 (its own arguments)
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, _: float, eps: float
) -> tuple[torch.Tensor, ...]:
    mean, scale = (y.view(-1, *[1] * (x.ndim - 2)) for y in (mean, (var + eps).rsqrt()))
    x = (x - mean) * scale
    x = x if weight is None else x * weight.view_as(mean)
    x = x if bias is None else x + bias.view_as(mean)
    return x, x.new_empty(0), x.new_empty(0)


BATCH_NORM = {torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm}  # noqa: SLF001 (its name)
"""Batch norm in inference, for engines that have none; torch's own ends in one that writes."""


_MASKS = (torch.bool, torch.uint8)
_is_wrapping = ContextVar("_is_wrapping", default=False)


def _selected(x: torch.Tensor, dim: int, index: Any) -> Any:
    # A number that data decides can't be asked about.
    if not isinstance(index, int) or index >= 0:
        return NotImplemented
    return x.select(dim, index + x.shape[dim])


def _with_wrapped_indices(
    operator: Any, x: torch.Tensor, indices: Sequence[Any], *arguments: Any, **keywords: Any
) -> Any:
    if _is_wrapping.get():  # it is asked again, of what it returns
        return NotImplemented
    token = _is_wrapping.set(True)
    try:
        return operator(x, _wrapped(x, indices), *arguments, **keywords)
    finally:
        _is_wrapping.reset(token)


def _wrapped(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    made, dim = list[torch.Tensor | None](), 0
    for index in indices:
        if index is None or index.dtype in _MASKS:
            made.append(index)
            dim += 1 if index is None else index.ndim
            continue
        counted = index.long()
        made.append(torch.where(counted < 0, counted + x.shape[dim], counted))
        dim += 1
    return made


WRAPPED_INDICES = {
    torch.ops.aten.select.int: _selected,
    **{
        x: functools.partial(_with_wrapped_indices, x)
        for x in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default)
    },
}
"""Indices that count from the end as such that count from the start, for engines that read or write
outside of a tensor's memory otherwise. They are 64-bit integers afterwards."""
