"""One recording: compiled code with its inputs in fixed memory, to be replayed as a whole."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from backbay_optimizer.cuda_graphs.addresses import Addresses
from backbay_optimizer.cuda_graphs.buffers import Buffers
from backbay_optimizer.cuda_graphs.capture import Pool, captured, launching
from backbay_optimizer.cuda_graphs.results import Results

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Compiled code as AOTAutograd calls it: with one list, which it clears."""


class Recording:
    """Compiled code, recorded for inputs of the same sizes, some of them at the same addresses."""

    def __init__(
        self,
        code: Boxed,
        inputs: Sequence[Any],
        fixed: Sequence[int],
        pool: Pool,
        *,
        saved: int = 0,
        ours: Collection[int] = (),
    ) -> None:
        """Capture the code; nothing is computed.

        Args:
            code: what is captured; it has run before in this thread, on such inputs.
            inputs: its inputs.
            fixed: which of them, tensors, are read where they are; the others are copied.
            pool: where its memory is.
            saved: how many of its last results are saved for a backward, and stay in the pool.
            ours: which of the fixed inputs another recording has kept so.

        Raises:
            NotCopied: its inputs or results can't be copied.
            Exception: it can't be captured.
        """
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        self.addresses = Addresses(inputs, fixed)
        """Of the inputs that are read where they are."""
        self._buffers = Buffers(inputs, [i for i in tensors if i not in set(fixed)])
        given = list(inputs)
        for i, buffer in self._buffers.made.items():
            given[i] = buffer
        boxed = list(given)  # the code clears it
        self._graph, recorded = captured(pool, lambda: code(boxed))
        self._results = Results(recorded, given, saved=saved, ours=ours)
        self.kept = self._results.kept.addresses
        """Where what is saved for a backward stays."""
        self.bytes = self._buffers.bytes
        """Of the memory that inputs are copied into."""
        pool.add(self)

    @property
    def pending(self) -> bool:
        """Whether something that was saved for a backward is alive: it would be overwritten."""
        return self._results.kept.is_alive()

    @property
    def sources(self) -> list[torch.Tensor]:
        """What is copied out of the pool."""
        return self._results.sources

    def share(self, other: "Recording") -> None:
        """Let a recording that was made of what this one keeps hold some of it."""
        self._results.kept.share(other.sources)

    def fits(self, inputs: list[Any]) -> bool:
        """Whether what is read where it is, is where it was, and the rest is laid out as it was."""
        return self.addresses.fit(inputs) and self._buffers.fit(inputs)

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Return what the code gives for these inputs, which fit; the list is cleared."""
        self._buffers.fill(inputs)
        with launching:
            self._graph.replay()
        results = self._results.make(inputs)
        inputs.clear()
        return results
