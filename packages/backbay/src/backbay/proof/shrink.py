"""Smaller inputs for the same model, for when the float64 truth of the full ones does not fit."""

import dataclasses

import torch

from backbay.errors import ProofImpossible
from backbay.proof.tree import leaves, mapped
from backbay.workloads.workload import Workload


def shrunk(workload: Workload, *, train: bool) -> Workload:
    """Return the workload on smaller inputs: its own ``reduced``, or a slice of the batch.

    A batch is cut to one, or in training to two, since the statistics of batch norm need two.

    Raises:
        ProofImpossible: the tensor inputs share no leading dimension that could be cut.
    """
    if workload.reduced is not None:
        small = workload.reduced()
        # The caller's compiled form belongs to the model that it holds, which is the same.
        return dataclasses.replace(
            small, model=workload.model, loss=small.loss or workload.loss, reduced=None
        )
    named = leaves((workload.args, dict(workload.kwargs)), "inputs")
    sizes = {x.shape[0] if x.dim() else None for _, x in named if isinstance(x, torch.Tensor)}
    batch = next(iter(sizes)) if len(sizes) == 1 else None
    wanted = 2 if train else 1
    if batch is None or batch <= wanted:
        raise ProofImpossible(
            f"the float64 truth of {workload.name or 'the workload'} does not fit, and its inputs "
            "share no leading dimension that could be cut: give Workload.reduced"
        )

    def cut(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return value[:wanted].detach().clone().requires_grad_(value.requires_grad)

    args, kwargs = mapped(cut, (workload.args, dict(workload.kwargs)))
    return dataclasses.replace(workload, args=args, kwargs=kwargs)
