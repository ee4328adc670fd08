"""Calls in a row as one: each begins from the state, and the random state, that the last one left.

So the golden of the row is made and judged as that of one call is: state that a backend folded into
its code, or keeps beside the model's own, is wrong in the second call.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from backbay.proof.copying import copied
from backbay.proof.tree import mapped
from backbay.workloads.workload import Workload


def in_a_row(workload: Workload, sets: Sequence[Sequence[torch.Tensor]]) -> Workload:
    """Return a workload that calls the model once with each set of inputs, one after the other.

    Args:
        workload: whose model it is; the two share it.
        sets: the tensor inputs of each call, in their order.

    Raises:
        ValueError: a set has another number of tensors than a call has.
    """
    of_one = workload.loss

    def loss(outputs: Any) -> torch.Tensor:
        assert of_one is not None, "else there is none"
        return torch.stack([of_one(x) for x in outputs]).sum()

    return dataclasses.replace(
        workload,
        model=_InARow(workload.model),
        args=tuple(_called_with(workload, x) for x in sets),
        kwargs={},
        loss=None if of_one is None else loss,
        reduced=None,
    )


def each(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a model, or its compiled form, with each set of inputs."""

    def calls(*sets: Any) -> tuple[Any, ...]:
        # Copies: an output may live no longer than to the next call.
        return tuple(mapped(_copy, call(*args, **kwargs)) for args, kwargs in sets)

    return calls


class _InARow(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *sets: Any) -> Any:
        return each(self.model)(*sets)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _called_with(workload: Workload, inputs: Iterable[torch.Tensor]) -> tuple[Any, Any]:
    left = list(inputs)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not left:
            raise ValueError("a call has more tensors than are given")
        return copied(left.pop(0)).requires_grad_(leaf.requires_grad)

    made: tuple[Any, Any] = mapped(other, (workload.args, dict(workload.kwargs)))
    if left:
        raise ValueError("a call has fewer tensors than are given")
    return made
