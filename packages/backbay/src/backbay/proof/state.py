"""What a run may change beside its results: a model's buffers and attributes, and the inputs.

A model writes to a buffer, or puts another tensor into its place, as ``self.mean = 0.9 * self.mean
+ ...`` does. So a buffer is what stands under its name, and not one tensor. What it counts or
gathers in plain attributes is put back, and is not judged.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from backbay.proof.fingerprint import fingerprint
from backbay.proof.step import Step

Named = list[tuple[str, torch.Tensor]]
_PLAIN = (int, float, str, tuple, torch.Tensor, type(None))


class Buffers:
    """The buffers of a model as they are at one moment, to be put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Copy them."""
        places = (x._buffers for x in model.modules())  # noqa: SLF001 (torch has no other way)
        # Those of a scripted module are no dictionary, and it only writes to them.
        self._places = [(x, dict(x)) for x in places if isinstance(x, dict)]
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


class Attributes:
    """What modules count or gather in plain attributes, as it is at one moment, to be put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Note them; tensors are copied."""
        self._places = [(vars(x), dict(vars(x))) for x in model.modules()]
        found = [x for _, held in self._places for x in held.values()]
        self._lists = [(x, list(x)) for x in found if isinstance(x, list)]
        gathered = [x for _, items in self._lists for x in items]
        tensors = {id(x): x for x in [*found, *gathered] if type(x) is torch.Tensor}
        self._values = [(x, x.detach().clone()) for x in tensors.values()]

    @property
    def changed(self) -> bool:
        """Whether something else is there, or in a tensor that is."""
        return (
            any(_differing(there, held) for there, held in self._places)
            or any([*map(id, there)] != [*map(id, items)] for there, items in self._lists)
            or not all(_same_bits(x, old) for x, old in self._values)
        )

    def put_back(self) -> None:
        """Put back what is not as it was; other objects than plain values and lists are left."""
        for there, held in self._places:
            for name in _differing(there, held):
                if name in held:
                    there[name] = held[name]
                else:
                    del there[name]
        for gathered, items in self._lists:
            gathered[:] = items
        _write_back(self._values)


@contextlib.contextmanager
def attributes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Write back what modules count or gather in plain attributes: Dynamo guards on those."""
    attributes = Attributes(model)
    try:
        yield
    finally:
        attributes.put_back()


def _differing(there: dict[str, Any], held: dict[str, Any]) -> list[str]:
    """Return the names of plain values, and of lists, that are not the objects that they were."""
    return [
        name
        for name in {**held, **there}
        if there.get(name, _PLAIN) is not held.get(name, _PLAIN)
        and isinstance(there.get(name), (*_PLAIN, list))
        and isinstance(held.get(name), (*_PLAIN, list))
    ]


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
