"""What a run may change beside its results: a model's buffers, and the inputs.

A model writes to a buffer, or puts another tensor into its place, as ``self.mean = 0.9 * self.mean
+ ...`` does. So a buffer is what stands under its name, and not one tensor.
"""

import torch

from backbay.proof.fingerprint import fingerprint
from backbay.proof.step import Step

Named = list[tuple[str, torch.Tensor]]


class Buffers:
    """The buffers of a model as they are at one moment, to be put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Copy them."""
        self._places = [(x._buffers, dict(x._buffers)) for x in model.modules()]  # noqa: SLF001 (torch has no other way)
        self._values = [(x, x.detach().clone()) for x in model.buffers()]
        copies = {id(x): old for x, old in self._values}
        self.values = {
            f"buffer {name}": copies[id(x)]
            for name, x in model.named_buffers(remove_duplicate=False)
        }
        """Copies of them by name; one that stands under two names has both."""

    def put_back(self) -> None:
        """Put each tensor back into its place, and its values into it."""
        for place, held in self._places:
            if place.keys() != held.keys() or any(place[x] is not held[x] for x in held):
                place.clear()
                place.update(held)
        _write_back(self._values)


class State:
    """A model's buffers and the inputs of a step, as they are at one moment."""

    def __init__(self, step: Step) -> None:
        """Copy them."""
        self._step = step
        self._buffers = Buffers(step.workload.model)
        self._inputs = [(name, x, x.detach().clone()) for name, x in step.inputs]

    @property
    def now(self) -> Named:
        """The inputs, and what stands in the buffers' places now."""
        buffers = self._step.workload.model.named_buffers()
        return [*self._step.inputs, *((f"buffer {name}", x) for name, x in buffers)]

    def changed(self) -> dict[str, torch.Tensor]:
        """Return copies of what is not as it was."""
        before = self._buffers.values | {name: old for name, _, old in self._inputs}
        return {
            name: x.detach().clone()
            for name, x in self.now
            if name not in before or not _same_bits(x, before[name])
        }

    def put_back(self) -> None:
        """Write what was changed back, where it was."""
        self._buffers.put_back()
        _write_back([(x, old) for _, x, old in self._inputs])


def _write_back(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for value, old in pairs:
            if value.shape != old.shape:
                value.resize_(old.shape)
            if not _same_bits(value, old):
                value.copy_(old)


def _same_bits(value: torch.Tensor, old: torch.Tensor) -> bool:
    if (value.shape, value.dtype, value.layout) != (old.shape, old.dtype, old.layout):
        return False
    return _equal(value, old) or fingerprint(value) == fingerprint(old)


def _equal(value: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.equal(value, other)
    except (NotImplementedError, RuntimeError):  # no kernel: complex32, sparse in rows
        return False
