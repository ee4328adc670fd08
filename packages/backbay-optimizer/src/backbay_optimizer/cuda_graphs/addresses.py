"""Where the inputs are that a recording reads where they are, and whether they are still there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backbay_optimizer.cuda_graphs.kept import memory_of


class Addresses:
    """Addresses of some inputs, which this does not keep alive."""

    def __init__(self, inputs: Sequence[Any], fixed: Sequence[int]) -> None:
        """Remember where inputs are.

        Args:
            inputs: all of them.
            fixed: which of them, tensors, are read where they are.
        """
        self._fixed = list(fixed)
        self._addresses: list[int | None] = [None] * len(inputs)
        storages: dict[int, StorageWeakRef] = {}
        for i in self._fixed:
            self._addresses[i] = inputs[i].data_ptr()
            memory = memory_of(inputs[i])
            if memory and memory not in storages:  # who has no elements is nowhere
                storage = inputs[i].untyped_storage()
                storages[memory] = StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch has no stub
        self._storages = list(storages.items())

    @property
    def all(self) -> set[int]:
        """The addresses."""
        return {x for x in self._addresses if x}

    def fit(self, inputs: list[Any]) -> bool:
        """Whether inputs are at these addresses."""
        # In C++: hundreds of parameters, in each call. It is in torch's builds for CUDA alone.
        same: bool = torch._C._tensors_data_ptrs_at_indices_equal(  # noqa: SLF001 (its only home)
            inputs, self._addresses, self._fixed
        )
        return same

    def are_stale(self) -> bool:
        """Whether memory of one is nobody's any more, or elsewhere: no inputs may ever fit again.

        Memory that is freed and whose tensor lives is not: FSDP frees it between calls, and may
        have it at the same place in the next.
        """
        return any(_begin(reference) not in (begin, 0) for begin, reference in self._storages)


def _begin(reference: StorageWeakRef) -> int | None:
    """Return where a storage begins, 0 if it has no memory now; None if nobody has it any more."""
    found = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # noqa: SLF001 (its only home)
    return None if found is None else found.data_ptr()
