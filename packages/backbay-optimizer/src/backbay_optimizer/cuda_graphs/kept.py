"""What a forward saved for its backward, in a recording's memory, and whether any of it is alive.

It is handed out as tensors that share its storages. Who holds such a tensor, or a view of one,
holds the storage: so storages are asked how many tensors have them, beside those that are known.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

_WRAPPER = 1
"""Python's own object of a storage, which is held here, counts as one tensor."""


class Kept:
    """Tensors that stay in a recording's memory."""

    def __init__(self) -> None:
        """Hold none."""
        self._tensors: list[torch.Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._known: Counter[int] = Counter()
        self._counts: list[tuple[int, int]] = []

    @property
    def addresses(self) -> frozenset[int]:
        """Where they are."""
        return frozenset(x.data_ptr() for x in self._tensors)

    def add(self, value: torch.Tensor) -> None:
        """Keep a tensor, which is added once and of which others are given only views."""
        self._tensors.append(value)
        self._storages.setdefault(memory_of(value), value.untyped_storage())
        self._known[memory_of(value)] += 1

    def share(self, others: Sequence[torch.Tensor]) -> None:
        """Know of tensors that are held elsewhere for as long as these are."""
        self._known.update(x for x in map(memory_of, others) if x in self._storages)
        self.count()

    def count(self) -> None:
        """Count anew how many tensors of each storage are known."""
        self._counts = [
            (storage._cdata, self._known[memory] + _WRAPPER)  # noqa: SLF001 (as torch's trees)
            for memory, storage in self._storages.items()
        ]

    def is_alive(self) -> bool:
        """Whether anybody else has one of them, or a view."""
        uses = torch._C._storage_Use_Count  # noqa: SLF001 (its only home)
        return any(uses(storage) != known for storage, known in self._counts)


def memory_of(value: Any) -> int:
    """Return where the memory of a tensor begins; 0 where it has none."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    return value.untyped_storage().data_ptr()
