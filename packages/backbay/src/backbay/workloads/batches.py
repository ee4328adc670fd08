"""The same workload with another batch: what torch.compile does when a size changes."""

import dataclasses
import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay.workloads.workload import Workload


def batch_of(workload: Workload) -> int | str:
    """Return the leading size that all tensor inputs share, or why there is none."""
    tensors = [x for x in _leaves(workload) if isinstance(x, torch.Tensor) and x.ndim > 0]
    sizes = sorted({int(x.shape[0]) for x in tensors})
    if not sizes:
        return "it has no tensor inputs"
    if len(sizes) > 1:
        said = " and ".join(map(str, sizes))
        return f"its tensor inputs have no leading size in common: {said}"
    return sizes[0] if sizes[0] > 0 else "its batch is empty"


def with_batch(workload: Workload, size: int) -> Workload:
    """Return the workload with another batch: of fewer rows, or of more, where all come again.

    A tensor that is given twice stays one tensor.
    """
    made: dict[int, torch.Tensor] = {}

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return leaf
        if id(leaf) not in made:
            times = math.ceil(size / leaf.shape[0])
            other = torch.cat([leaf.detach()] * times)[:size].clone()  # cat keeps the layout
            made[id(leaf)] = other.requires_grad_(leaf.requires_grad)
        return made[id(leaf)]

    args, kwargs = pytree.tree_map(resized, (workload.args, dict(workload.kwargs)))
    return dataclasses.replace(workload, args=args, kwargs=kwargs, reduced=None)


def _leaves(workload: Workload) -> list[Any]:
    return pytree.tree_leaves((workload.args, dict(workload.kwargs)))
