"""What the caller gets of a recording: tensors of its own, that share memory as the recorded do.

What is saved for a backward is not the caller's: autograd alone has it, and a recording keeps it in
its own memory.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay_optimizer.cuda_graphs.buffers import (
    NotCopied,
    copy_all,
    is_deferred,
    is_dense,
    overlaps,
)
from backbay_optimizer.cuda_graphs.kept import Kept, memory_of

Inputs = Sequence[Any]

_quick: Any = torch._C._dynamo.guards  # noqa: SLF001 (Inductor's own code has these from here)
_view = _quick._reinterpret_tensor  # noqa: SLF001 (torch.ops has it, too, and is slower)
_EMPTY = {"cuda": _quick._empty_strided_cuda, "cpu": _quick._empty_strided_cpu}  # noqa: SLF001
"""What makes a tensor on the current device in half the time of ``torch.empty_strided``."""


@dataclass(slots=True)
class _Call:
    """What is made in one call."""

    inputs: Inputs
    is_here: bool
    """Whether results are on the current device."""
    results: list[Any] = field(default_factory=list)
    copies: list[torch.Tensor] = field(default_factory=list)
    """As long as what is copied, and in its order."""


_Step = Callable[[_Call], Any]


class Results:
    """How the results of a recording are made anew in each call.

    - An input that was handed through is the caller's own, and a view of one is a view of that.
    - What is saved for a backward, and shares no memory with anything else, is where it is.
    - All else is copied: each tensor, or its whole storage where several share one.
    """

    def __init__(
        self,
        recorded: Sequence[Any],
        inputs: Inputs,
        *,
        saved: int = 0,
        ours: Collection[int] = (),
    ) -> None:
        """Find out how the results lie in memory.

        Args:
            recorded: what was captured.
            inputs: what it was captured with.
            saved: how many of the last results are saved for a backward.
            ours: which inputs another recording keeps: they are no caller's, and are copied.

        Raises:
            NotCopied: a result can't be made once more.
        """
        self._inputs: list[Any] = [None if i in ours else x for i, x in enumerate(inputs)]
        self._owners = {memory_of(x): i for i, x in enumerate(self._inputs) if memory_of(x)}
        first = len(recorded) - saved
        shown = {memory_of(x) for x in recorded[:first]}
        self._saved = {memory_of(x) for x in recorded[first:]} - shown - self._owners.keys() - {0}
        self.kept = Kept()
        self.sources: list[torch.Tensor] = []
        """What is copied, as tensors that nobody else has."""
        self._storages: dict[int, int] = {}
        """Each storage that is copied whole, to its number among what is copied."""
        self._seen: dict[int, int] = {}
        self._shared = Counter(memory_of(x) for x in {id(x): x for x in recorded}.values())
        self._steps = [self._step(number, x) for number, x in enumerate(recorded)]
        self._inputs = []
        self.kept.count()
        by_kind: dict[Any, list[int]] = {}
        for number, source in enumerate(self.sources):
            kind = source.dtype, source.device, is_dense(source)
            by_kind.setdefault(kind, []).append(number)
        self._groups = list(by_kind.values())
        self._device = next((x.device.index for x in self.sources if x.is_cuda), None)

    def make(self, inputs: Inputs) -> list[Any]:
        """Return the results of a replay, after which this is called in the same stream."""
        is_here = self._device is None or self._device == torch.cuda.current_device()
        call = _Call(inputs, is_here)
        for step in self._steps:
            call.results.append(step(call))
        for group in self._groups:
            copy_all([call.copies[x] for x in group], [self.sources[x] for x in group])
        return call.results

    def _step(self, number: int, value: Any) -> _Step:
        if not isinstance(value, torch.Tensor):
            return lambda _: value
        owned = next((i for i, x in enumerate(self._inputs) if x is value), None)
        if owned is not None:  # a parameter, say
            return lambda call: call.inputs[owned]
        if type(value) is not torch.Tensor or value.layout != torch.strided:
            raise NotCopied(f"a result is a {type(value).__name__} of layout {value.layout}")
        if is_deferred(value):
            raise NotCopied("a result is conjugated or negated where it is read")
        same = self._seen.setdefault(id(value), number)
        if same != number:
            return lambda call: call.results[same]
        memory = memory_of(value)
        if memory in self._saved:
            return self._of_saved(value)
        if memory in self._owners:
            return self._of_input(value, self._owners[memory])
        whole = memory and self._shared[memory] > 1
        if not whole and overlaps(value):
            raise NotCopied("a result overlaps itself")
        return self._of_storage(value) if whole else self._of_tensor(value)

    def _of_saved(self, value: torch.Tensor) -> _Step:
        # A view holds its base, which would count as the caller's. What is no view is kept itself:
        # it may be a constant, which the code holds, too.
        kept = value.data if value._is_view() else value  # noqa: SLF001 (its only home)
        self.kept.add(kept)
        return lambda _: kept.data  # one that has been written by nobody, of the same memory

    def _of_input(self, value: torch.Tensor, position: int) -> _Step:
        owner = self._inputs[position]
        if owner.dtype != value.dtype:
            raise NotCopied("a result is an input's memory, read as another type")
        size, stride = tuple(value.shape), value.stride()
        further = value.storage_offset() - owner.storage_offset()
        return lambda call: _view(call.inputs[position], size, stride, further)

    def _of_storage(self, value: torch.Tensor) -> _Step:
        dtype, device, size = value.dtype, value.device, tuple(value.shape)
        stride, offset = value.stride(), value.storage_offset()
        known = self._storages.get(memory_of(value))
        storage = value.untyped_storage()
        number = len(self.sources) if known is None else known

        def made(call: _Call) -> torch.Tensor:
            if known is None:
                length = storage.nbytes()
                call.copies.append(torch.empty(length, dtype=torch.uint8, device=device))
            memory = call.copies[number].untyped_storage()
            empty = torch.empty(0, dtype=dtype, device=device)
            return empty.set_(memory, offset, size, stride)

        if known is None:
            self._storages[memory_of(value)] = number
            source = torch.empty(0, dtype=torch.uint8, device=device)
            self.sources.append(source.set_(storage, 0, (storage.nbytes(),), (1,)))
        return made

    def _of_tensor(self, value: torch.Tensor) -> _Step:
        dtype, device, size, stride = value.dtype, value.device, tuple(value.shape), value.stride()
        offset, length = value.storage_offset(), value.untyped_storage().nbytes()
        usual = torch.empty_strided(size, stride, dtype=dtype, device="meta").untyped_storage()
        is_usual = offset == 0 and length == usual.nbytes()
        self.sources.append(value.data)
        empty = _EMPTY[device.type]

        def made(call: _Call) -> torch.Tensor:
            if is_usual and call.is_here:
                copy: torch.Tensor = empty(size, stride, dtype)
            elif is_usual:
                copy = torch.empty_strided(size, stride, dtype=dtype, device=device)
            else:  # a part of its memory, the rest of which nobody reads
                memory = torch.empty(length, dtype=torch.uint8, device=device).untyped_storage()
                copy = torch.empty(0, dtype=dtype, device=device)
                copy.set_(memory, offset, size, stride)
            call.copies.append(copy)
            return copy

        return made
