"""Memory of a recording's own that inputs are copied into."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backbay_optimizer.cuda_graphs.kept import memory_of

ALIGNMENT = 16
"""Bytes. Inductor's kernels read so many at once where an input began at a multiple of them."""
MOST_WASTE = 2
"""Bytes that are copied for one that is read, at most."""


ALONE_FROM = 2**25
"""Bytes of a tensor that is copied with a launch of its own. On an H200 a Llama's gradients move at
3.8 TB/s so, since most of their bytes are in such tensors, and at 2.8 with ``torch._foreach_copy_``
alone (``benchmarks/copies.py``, 2026-11-30). A launch costs the host 5 us, in which 8 MiB are
moved: many tensors of that size would wait for the host."""


class NotCopied(Exception):  # noqa: N818 (reads as what it says)
    """An input can't be copied, or a result can't be made once more from memory of a recording."""


@dataclass(frozen=True, kw_only=True)
class _Views:
    """Inputs that are views of one storage, as of a table's columns: one copy has them all."""

    places: tuple[int, ...]
    distances: tuple[int, ...]
    """Bytes from where the first one begins in memory."""
    memory: torch.Tensor
    """The bytes from the first one's beginning to the last one's end."""
    last: int
    """Which one ends last."""

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether inputs lie to each other as they did."""
        first = inputs[self.places[0]]
        begin = first.data_ptr()
        return memory_of(first) == memory_of(inputs[self.last]) and all(
            inputs[i].data_ptr() - begin == distance
            for i, distance in zip(self.places, self.distances, strict=True)
        )

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy what is between them, too."""
        first = inputs[self.places[0]]
        begin = first.storage_offset() * first.element_size()
        source = torch.empty(0, dtype=torch.uint8, device=first.device)
        source.set_(first.untyped_storage(), begin, self.memory.shape, (1,))
        self.memory.copy_(source)


class Buffers:
    """Tensors that are laid out as inputs are, and filled with them."""

    def __init__(self, inputs: Sequence[Any], places: Sequence[int]) -> None:
        """Take memory; nothing is copied yet.

        Args:
            inputs: of which some are copied.
            places: which of them, tensors.

        Raises:
            NotCopied: one can't be copied.
        """
        self.made: dict[int, torch.Tensor] = {}
        """The tensors, by the places of their inputs."""
        self._views: list[_Views] = []
        by_storage: dict[int, list[int]] = {}
        for i in places:
            by_storage.setdefault(memory_of(inputs[i]), []).append(i)
        for memory, together in by_storage.items():
            ordered = sorted(together, key=lambda i: int(inputs[i].data_ptr()))
            if not memory or len(ordered) == 1 or not self._add_views(inputs, ordered):
                for i in ordered:
                    self._add(inputs[i], i)
        alone = set(self.made) - {i for views in self._views for i in views.places}
        groups: dict[Any, list[int]] = {}
        for i in sorted(alone):
            groups.setdefault((inputs[i].dtype, is_dense(inputs[i])), []).append(i)
        self._groups = list(groups.values())
        self.bytes = sum(x.memory.nbytes for x in self._views)
        """What all of them hold."""
        self.bytes += sum(self.made[i].untyped_storage().nbytes() for i in alone)
        self._layouts = [(i, x.shape, x.stride()) for i, x in self.made.items()]

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether inputs are laid out as these are."""
        for i, shape, stride in self._layouts:  # in each call: cheap, if there are many
            x = inputs[i]
            if x.shape != shape or x.stride() != stride or is_deferred(x):
                return False
        return all(x.fit(inputs) for x in self._views)

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy inputs."""
        for views in self._views:
            views.fill(inputs)
        for group in self._groups:
            copy_all([self.made[i] for i in group], [inputs[i] for i in group])

    def _add(self, value: torch.Tensor, place: int) -> None:
        if overlaps(value):
            raise NotCopied("an input overlaps itself: it is expanded")
        self.made[place] = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )

    def _add_views(self, inputs: Sequence[Any], places: Sequence[int]) -> bool:
        """Add several as views of one memory, if not much is between them."""
        begin = inputs[places[0]].data_ptr()
        ends = {i: inputs[i].data_ptr() + extent(inputs[i]) for i in places}
        last = max(places, key=lambda i: ends[i])
        length = ends[last] - begin
        read = sum(inputs[i].numel() * inputs[i].element_size() for i in places)
        if length > MOST_WASTE * read:
            return False
        device, shift = inputs[places[0]].device, begin % ALIGNMENT
        if any((inputs[i].data_ptr() - begin + shift) % inputs[i].element_size() for i in places):
            return False
        whole = torch.empty(shift + length, dtype=torch.uint8, device=device)
        distances = tuple(inputs[i].data_ptr() - begin for i in places)
        for i, distance in zip(places, distances, strict=True):
            value = inputs[i]
            made = torch.empty(0, dtype=value.dtype, device=device)
            offset = (shift + distance) // value.element_size()
            made.set_(whole.untyped_storage(), offset, value.shape, value.stride())
            self.made[i] = made
        views = _Views(places=tuple(places), distances=distances, memory=whole[shift:], last=last)
        self._views.append(views)
        return True


def copy_all(to: list[torch.Tensor], what: list[torch.Tensor]) -> None:
    """Copy tensors of one type: large ones each by itself, the others with few launches."""
    small = []
    for pair in zip(to, what, strict=True):
        if pair[1].nbytes >= ALONE_FROM or len(to) == 1:
            pair[0].copy_(pair[1])
        else:
            small.append(pair)
    if small:
        torch._foreach_copy_([x for x, _ in small], [x for _, x in small])


def extent(value: torch.Tensor) -> int:
    """Return how many bytes there are from a tensor's first element to the end of its last."""
    steps = zip(value.shape, value.stride(), strict=True)
    elements = sum((size - 1) * stride for size, stride in steps) + 1 if value.numel() else 0
    return elements * value.element_size()


def is_deferred(value: torch.Tensor) -> bool:
    """Whether a tensor is conjugated or negated where it is read, and its memory is not."""
    return value.is_conj() or value.is_neg()


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor has no holes. Where any has, torch copies each of a list alone."""
    return extent(value) == value.numel() * value.element_size()


def overlaps(value: torch.Tensor) -> bool:
    """Whether a tensor is expanded: some of its elements are the same memory."""
    return value.numel() > 0 and any(
        stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)
    )
