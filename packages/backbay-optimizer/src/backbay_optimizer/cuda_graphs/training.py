"""Training: a forward and its backward, recorded as a pair in memory of their own.

What a forward saves for its backward stays where it was recorded, and is not copied. While any of
it is alive the forward is *pending*, and is not replayed: another one runs as it is. A backward is
replayed if it is given what a replay of its forward saved; else it runs as it is, on whatever it is
given. What leaves either is the caller's own: results and gradients are copied out. A tensor that
is returned and saved is one tensor, as ever, and is copied into the backward.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay_optimizer.cuda_graphs.addresses import Addresses
from backbay_optimizer.cuda_graphs.capture import Pool
from backbay_optimizer.cuda_graphs.recording import Recording
from backbay_optimizer.cuda_graphs.recordings import drop, drop_stale, in_turn
from backbay_optimizer.cuda_graphs.replayable import Key, Replayable, current_stream, unusual

CHECKPOINTS = "torch.utils.checkpoint"
"""Its hooks hold what is saved, or nothing; others may read it in a stream of their own."""


@dataclass(eq=False)
class Pair:
    """A forward, and its backward once that is recorded, too."""

    pool: Pool
    forward: Recording
    number: int
    """How many there were with it, for the compile log."""
    backward: Recording | None = None
    backward_key: Key = ()

    @property
    def addresses(self) -> Addresses:
        """Of parameters."""
        return self.forward.addresses


@dataclass(eq=False)
class Pairs:
    """What is recorded of a graph: in one stream, and used by one thread at a time."""

    stream: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    by_key: dict[Key, deque[Pair]] = field(default_factory=dict)

    @property
    def all(self) -> list[Pair]:
        """Return every pair."""
        return [x for pairs in self.by_key.values() for x in pairs]

    @property
    def number(self) -> int:
        """How many pairs there are."""
        return sum(map(len, self.by_key.values()))


class Trained(Replayable):
    """One of the two; the backward often runs in a thread of autograd's."""

    def _replayed(self, inputs: list[Any]) -> Sequence[Any] | str:
        stream, held = current_stream(self._inputs.device), self._shared.held
        assert held is None or isinstance(held, Pairs)  # a graph trains or it does not
        if held is None or not held.number:
            held = self._shared.held = Pairs(stream)
        if held.stream != stream:
            return "another stream"
        if not held.lock.acquire(blocking=False):
            return "another thread was replaying"
        try:
            with torch.no_grad():
                recording = self._recording(inputs, held)
                return recording if isinstance(recording, str) else recording.replay(inputs)
        finally:
            held.lock.release()

    def _recording(self, inputs: list[Any], held: Pairs) -> Recording | str:
        """Return a recording for these inputs, earlier or new, or why there is none."""
        raise NotImplementedError

    def _drop_if_large(self, pair: Pair, held: Pairs) -> str | None:
        """Release a new recording that holds more memory than is left, and return why."""
        if self._shared.excess(pair.pool.index) is not None:
            drop_stale(held, least=1, keep=pair)
            self._shared.release_stale()
        why = self._shared.excess(pair.pool.index)
        if why is None:
            return None
        drop(held, {pair})
        self._shared.full = f"{why} with another one"
        return self._shared.full


class Forward(Trained):
    """A compiled forward."""

    kind = "forward graph"

    def _elsewhere(self) -> str | None:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 (as AOTAutograd)
        found = hooks(True)  # noqa: FBT003 (takes it by position alone)
        if found is not None and getattr(found[0], "__module__", None) != CHECKPOINTS:
            return "hooks of the caller's see what is saved for the backward"
        return super()._elsewhere()

    def _recording(self, inputs: list[Any], held: Pairs) -> Recording | str:
        key, shared = self._key(inputs), self._shared
        found = in_turn(held.by_key.get(key, deque()), lambda x: x.forward.fits(inputs))
        if found is not None:
            if found.forward.pending:
                return "an earlier one's backward is pending"
            shared.earn()
            return found.forward
        why = self._premature(key)
        if why is None and shared.saved is None:
            why = "its backward has not run yet"
        why = why or shared.full or unusual(inputs, self._inputs.device)
        why = why or shared.enough(held, key)
        if why is not None:
            return why
        drop_stale(held)
        fixed = [i for i in self._inputs.fixed if isinstance(inputs[i], torch.Tensor)]
        pool, saved = Pool(self._inputs.device, held.stream), shared.saved or 0
        made = self._recorded(lambda: Recording(self._code, inputs, fixed, pool, saved=saved))
        if isinstance(made, str):
            return made
        shared.spend()
        pair = Pair(pool, made, held.number + 1)
        held.by_key.setdefault(key, deque()).append(pair)
        why = self._drop_if_large(pair, held)
        if why is not None:
            return why
        shared.say(
            f"{self.kind} recorded as CUDA graph {pair.number}; its pool has {pool.bytes >> 20} MiB"
        )
        return made


class Backward(Trained):
    """A compiled backward."""

    kind = "backward graph"

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the code; the list is cleared."""
        results = super().__call__(inputs)
        self._shared.ran_backward = True
        return results

    def _recording(self, inputs: list[Any], held: Pairs) -> Recording | str:
        key = self._key(inputs)
        recording = _known_backward(held, key, inputs)
        if recording is not None:
            return recording
        why = self._premature(key)
        if why is not None:
            return why
        given = {x.data_ptr() for x in inputs if isinstance(x, torch.Tensor)}
        forwards = [x for x in held.all if x.forward.kept <= given]
        if not forwards:
            return "its forward ran without one, or what that saved is elsewhere"
        own = next((x for x in forwards if x.backward is None), None)
        if own is None:
            return "its inputs are laid out otherwise, or parameters are elsewhere"
        return unusual(inputs, self._inputs.device) or self._made(inputs, own, held)

    def _made(self, inputs: list[Any], own: Pair, held: Pairs) -> Recording | str:
        """Return a new recording, which reads what the forward saved where that is."""
        forward, shared = own.forward, self._shared
        places = [(i, x.data_ptr()) for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        ours = [i for i, x in places if x in forward.kept]
        at = forward.kept | forward.addresses.all
        fixed = [i for i, x in places if x in at]
        made = self._recorded(lambda: Recording(self._code, inputs, fixed, own.pool, ours=ours))
        if isinstance(made, str):
            return made
        forward.share(made)
        own.backward, own.backward_key = made, self._key(inputs)
        why = self._drop_if_large(own, held)
        if why is not None:
            return why
        shared.say(
            f"{self.kind} recorded with CUDA graph {own.number}; their pool has "
            f"{own.pool.bytes >> 20} MiB"
        )
        return made


def _known_backward(held: Pairs, key: Key, inputs: list[Any]) -> Recording | None:
    def fits(pair: Pair) -> bool:
        backward = pair.backward
        return backward is not None and pair.backward_key == key and backward.fits(inputs)

    for known in held.by_key.values():
        pair = in_turn(known, fits, backwards=True)
        if pair is not None:
            return pair.backward
    return None
