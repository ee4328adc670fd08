"""Calls in a row as one: each begins from the state, and the random state, that the last one left.

So the golden of the row is made and judged as that of one call is: state that a backend folded into
its code, or keeps beside the model's own, is wrong in the second call.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from backbay.proof.copying import copied, copied_together
from backbay.proof.tree import leaves, mapped
from backbay.workloads.batches import batch_of
from backbay.workloads.workload import Workload


def in_a_row(workload: Workload, sets: Sequence[Sequence[torch.Tensor]]) -> Workload:
    """Return a workload that calls the model once with each set of inputs, one after the other.

    Args:
        workload: whose model it is; the two share it.
        sets: the tensor inputs of each call, in their order.

    Raises:
        ValueError: a set has another number of tensors than a call has.
    """
    return dataclasses.replace(
        workload,
        model=InARow(workload.model),
        args=tuple(_called_with(workload, x) for x in sets),
        kwargs={},
        loss=_summed(workload.loss),
        reduced=None,
    )


def mixed(workload: Workload) -> Workload:
    """Return a workload whose one call is all of its calls, in turn; without further ones, itself.

    Its one positional input for each call is a pair of positional and keyword inputs. It has the
    workload's own model, in an `InARow`.
    """
    return _row(workload) if workload.further else workload


def _row(workload: Workload) -> Workload:
    reduced = workload.reduced
    return dataclasses.replace(
        workload,
        model=InARow(workload.model),
        args=tuple((tuple(x), dict(y)) for x, y in _calls(workload)),
        kwargs={},
        further=(),
        loss=_summed(workload.loss),
        reduced=None if reduced is None else lambda: _row(reduced()),
    )


def labels(workload: Workload) -> tuple[str, ...]:
    """Return what a workload's calls differ by: the batch, or the shapes of their tensors.

    There are none where it has no further calls.
    """
    if not workload.further:
        return ()
    calls = [
        dataclasses.replace(workload, args=tuple(x), kwargs=y, further=())
        for x, y in _calls(workload)
    ]
    batches = [batch_of(x) for x in calls]
    if all(isinstance(x, int) for x in batches) and len(set(batches)) == len(batches):
        return tuple(f"batch {x}" for x in batches)
    shapes = [_shapes(x) for x in calls]
    return tuple(f"call {i}, {x}" for i, x in enumerate(shapes, 1))


def _calls(workload: Workload) -> list[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    return [(workload.args, workload.kwargs), *workload.further]


def _shapes(workload: Workload) -> str:
    named = leaves((workload.args, dict(workload.kwargs)), "inputs")
    shapes = [tuple(x.shape) for _, x in named if isinstance(x, torch.Tensor)]
    return " and ".join("x".join(map(str, x)) or "scalar" for x in shapes) or "no tensors"


def _summed(of_one: Callable[[Any], torch.Tensor] | None) -> Callable[[Any], torch.Tensor] | None:
    if of_one is None:
        return None

    def loss(outputs: Any) -> torch.Tensor:
        return torch.stack([of_one(x) for x in outputs]).sum()

    return loss


def each(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a model, or its compiled form, with each set of inputs."""

    def calls(*sets: Any) -> tuple[Any, ...]:
        # Copies: an output may live no longer than to the next call.
        return tuple(mapped(_copy, call(*args, **kwargs)) for args, kwargs in sets)

    return calls


class InARow(torch.nn.Module):
    """A model that is called once with each set of inputs: ``model`` is what is compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *sets: Any) -> Any:
        """Return what each call gives."""
        return each(self.model)(*sets)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _called_with(workload: Workload, inputs: Iterable[torch.Tensor]) -> tuple[Any, Any]:
    left = list(inputs)
    found = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    together = copied_together([x for x in found if isinstance(x, torch.Tensor)])

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not left:
            raise ValueError("a call has more tensors than are given")
        value = left.pop(0)
        made = together[id(leaf)].copy_(value) if id(leaf) in together else copied(value)
        return made.requires_grad_(leaf.requires_grad)

    call: tuple[Any, Any] = mapped(other, (workload.args, dict(workload.kwargs)))
    if left:
        raise ValueError("a call has fewer tensors than are given")
    return call
