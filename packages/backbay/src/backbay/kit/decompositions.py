"""Operators that an engine gets in the place of others: torch's core ATen, and further ones."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.utils import _pytree as pytree

NORMS = (torch.ops.aten.native_layer_norm, torch.ops.aten.native_group_norm)
"""Of these many engines give the first result only; training reads the others, too."""


@functools.cache
def core_aten(*further: Any) -> Mapping[Any, Any]:
    """Return torch's decompositions to core ATen, and what engines need beside them.

    Batch norm in training is taken apart: few have it
    with its running statistics, and some that seem to leave them as they were. So is a squeeze of
    several dimensions, which torch's decompositions make, and few have. Sums of integers and of
    booleans are taken in the dtype of their result, to which some engines don't convert; ``any``
    and ``all`` are taken of booleans; a product of booleans is a conjunction, and a sum of two a
    disjunction. Pooling
    has a batch, which pooling along one dimension comes without.

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
    return {
        **core_aten_decompositions(),
        **get_decompositions([*training, *further]),
        **{x: functools.partial(_over_all, x) for x in extremes},
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
