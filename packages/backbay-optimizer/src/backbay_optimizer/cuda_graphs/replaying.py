"""Inference: recordings keep nothing between calls, so those of one stream share memory."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay_optimizer.cuda_graphs.capture import Pool, pool_of
from backbay_optimizer.cuda_graphs.recording import Recording
from backbay_optimizer.cuda_graphs.recordings import drop_stale, in_turn
from backbay_optimizer.cuda_graphs.replayable import Key, Replayable, current_stream, unusual

STALE = "its recordings were dropped: parameters are elsewhere"
"""Why nothing is recorded in the call that drops all: the next one has another pool."""


@dataclass(eq=False, frozen=True)
class Held:
    """A pool, and what is recorded in it."""

    pool: Pool
    by_key: dict[Key, deque[Recording]] = field(default_factory=dict)

    @property
    def lock(self) -> threading.Lock:
        """The pool's."""
        return self.pool.lock

    @property
    def number(self) -> int:
        """How many recordings there are."""
        return sum(map(len, self.by_key.values()))


class Replayed(Replayable):
    """Compiled inference."""

    kind = "inference graph"

    def _replayed(self, inputs: list[Any]) -> Sequence[Any] | str:
        stream, held = current_stream(self._inputs.device), self._shared.held
        assert held is None or isinstance(held, Held)  # a graph trains or it does not
        if held is None or not held.number:
            held = self._shared.held = Held(pool_of(self._inputs.device, stream))
        if held.pool.stream != stream:
            return "another stream"
        if not held.pool.lock.acquire(blocking=False):
            return "another thread was replaying"
        try:
            with torch.no_grad():
                recording = self._recording(inputs, held)
                return recording if isinstance(recording, str) else recording.replay(inputs)
        finally:
            held.pool.lock.release()

    def _recording(self, inputs: list[Any], held: Held) -> Recording | str:
        """Return a recording for these inputs, earlier or new, or why there is none."""
        key, shared = self._key(inputs), self._shared
        known = held.by_key.get(key, deque())
        recording = in_turn(known, lambda x: x.fits(inputs))
        if recording is not None:
            shared.earn()
            return recording
        why = self._premature(key) or unusual(inputs, self._inputs.device)
        why = why or shared.enough(held, key)
        if why is not None:
            return why
        drop_stale(held)
        if held.pool.is_drained:
            return STALE
        fixed = [i for i in self._inputs.fixed if isinstance(inputs[i], torch.Tensor)]
        made = self._recorded(lambda: Recording(self._code, inputs, fixed, held.pool))
        if isinstance(made, str):
            return made
        shared.spend()
        why = shared.excess(held.pool.index)
        if why is not None:
            shared.stop(why)
            return "recordings would hold too much memory"
        held.by_key.setdefault(key, deque()).append(made)
        shared.say(
            f"{self.kind} recorded as CUDA graph {held.number}; its pool has "
            f"{held.pool.bytes >> 20} MiB"
        )
        return made
