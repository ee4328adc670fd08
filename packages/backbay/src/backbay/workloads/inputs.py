"""Smaller inputs for the same model."""

import dataclasses

import torch

from backbay.workloads.workload import Workload

_PART = 4
_SHORTEST = 8


def reduced_batch(workload: Workload) -> Workload:
    """Return the workload a ``reduced`` form: a quarter of the batch, and of the tokens' length.

    All tensor inputs have the batch first; those of integers and two dimensions are sequences.
    """

    def reduced() -> Workload:
        return dataclasses.replace(
            workload,
            args=tuple(_quarter(tensor) for tensor in workload.args),
            kwargs={name: _quarter(tensor) for name, tensor in workload.kwargs.items()},
            reduced=None,
        )

    return dataclasses.replace(workload, reduced=reduced)


def _quarter(tensor: torch.Tensor) -> torch.Tensor:
    smaller = tensor[: max(1, tensor.shape[0] // _PART)]
    if tensor.ndim == 2 and not tensor.is_floating_point():  # noqa: PLR2004 (batch, sequence)
        smaller = smaller[:, : max(_SHORTEST, tensor.shape[1] // _PART)]
    return smaller.clone(memory_format=torch.contiguous_format)
