"""The same workload with another batch, or smaller inputs, and how inputs are changed alike."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay.workloads.workload import Workload

_PART = 4
_SMALLEST = 2
"""Rows: what batch norm in training needs."""
_SHORTEST = 8


def batch_of(workload: Workload) -> int | str:
    """Return the leading size that all tensor inputs share, or why there is none."""
    leaves = pytree.tree_leaves((workload.args, dict(workload.kwargs)))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor) and x.ndim > 0]
    sizes = sorted({int(x.shape[0]) for x in tensors})
    if not sizes:
        return "it has no tensor inputs"
    if len(sizes) > 1:
        said = " and ".join(map(str, sizes))
        return f"its tensor inputs have no leading size in common: {said}"
    return sizes[0] if sizes[0] > 0 else "its batch is empty"


def with_batch(workload: Workload, size: int) -> Workload:
    """Return the workload with another batch: of fewer rows, or of more, where all come again."""

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0:
            return tensor
        times = math.ceil(size / tensor.shape[0])
        return torch.cat([tensor.detach()] * times)[:size].clone()  # cat keeps the layout

    args, kwargs = with_tensors((workload.args, dict(workload.kwargs)), resized)
    return dataclasses.replace(workload, args=args, kwargs=kwargs, reduced=None)


def with_batches(workload: Workload, sizes: Sequence[int]) -> Workload:
    """Return the workload with a batch of the first size, and a further call for each other one."""
    first, *others = (with_batch(workload, size) for size in sizes)
    further = tuple((x.args, x.kwargs) for x in others)
    smaller = [max(_SMALLEST, size // _PART) for size in sizes]
    return dataclasses.replace(
        first,
        further=further,
        reduced=(lambda: with_batches(workload, smaller)) if others else None,
    )


def with_tensors(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a pytree with its tensors changed; one that occurs twice stays one tensor.

    What requires grad does so afterwards.
    """
    changed: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in changed:
            made = change(leaf)
            changed[id(leaf)] = made if made is leaf else made.requires_grad_(leaf.requires_grad)
        return changed[id(leaf)]

    return pytree.tree_map(one, inputs)


def reduced_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload a ``reduced`` form: a quarter of the batch, and of the tokens' length.

    Args:
        workload: its inputs that have the batch first are cut; of these, integers of two dimensions
            are sequences.
        batch: how many rows it has.
    """

    def smaller(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != batch:
            return tensor
        part = tensor[: max(1, batch // _PART)]
        if tensor.ndim == 2 and not tensor.is_floating_point():  # noqa: PLR2004 (batch, sequence)
            part = part[:, : max(_SHORTEST, tensor.shape[1] // _PART)]
        return part.clone(memory_format=torch.contiguous_format)

    def reduced() -> Workload:
        args, kwargs = with_tensors((workload.args, dict(workload.kwargs)), smaller)
        return dataclasses.replace(workload, args=args, kwargs=kwargs, reduced=None)

    return dataclasses.replace(workload, reduced=reduced)
