"""Compiled code that is replayed where that is safe, and runs as it is everywhere else."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from backbay import compile_log
from backbay_optimizer.cuda_graphs.capture import Pool, inference_pool, pool_bytes
from backbay_optimizer.cuda_graphs.recording import Boxed, Recording

Kind = Literal["inference", "forward", "backward"]
MOST_RECORDINGS = 8
"""Of one compiled graph: for other sizes, or parameters elsewhere. More are not made."""
MOST_KEYS = 64
"""Sizes that are remembered to have been seen."""
FIRST = "the first call of its kind"
Key = tuple[Any, ...]


@dataclass(eq=False)
class Recordings:
    """What is recorded of one of Dynamo's graphs: inference, or forward and backward."""

    name: str
    """The backend, for the compile log."""
    share: float = 0.5
    """The part of a device's memory that all pools together may hold."""
    enabled: bool = True
    """Whether anything is recorded or replayed; nothing that is recorded goes where it is not."""
    pool: Pool | None = None
    forward: list[Recording] = field(default_factory=list)
    """Those whose results a backward graph may be handed."""
    times_forgotten: int = 0
    _said: set[str] = field(default_factory=set)

    def forget(self) -> None:
        """Give the memory of what was recorded back, as far as nobody has a part of it."""
        self.times_forgotten += 1
        self.forward.clear()
        self.pool = None

    def stop(self, why: str) -> None:
        """Record and replay nothing from now on."""
        self.enabled = False
        self.forget()
        self.say(f"no CUDA graph any more: {why}")

    def say(self, why: str) -> None:
        """Put a line into the compile log, once."""
        if why not in self._said:
            self._said.add(why)
            compile_log.note(compile_log.Record(asked=self.name, ran="inductor", why=why))


@dataclass(frozen=True)
class Inputs:
    """What is known of the inputs of compiled code before it runs."""

    device: int
    integers: Sequence[int] = ()
    """Which are integers: sizes, where they are symbols."""
    symbolic: Sequence[int] = ()
    """Which are tensors of such sizes."""
    fixed: Sequence[int] = ()
    """Which are parameters, buffers, or saved by the forward graph."""


class Replayed:
    """Compiled code; the second call of each kind records it, and later ones replay that."""

    def __init__(
        self, code: Boxed, kind: Kind, inputs: Inputs, shared: Recordings, returned: int
    ) -> None:
        """Hold the code.

        Args:
            code: as Inductor made it.
            kind: of the graph.
            inputs: what is known of its inputs.
            shared: with the other graph of the two, where there are two.
            returned: how many of its results leave compiled code; others are saved for backward.
        """
        self._code = code
        self._kind = kind
        self._inputs = inputs
        self._shared = shared
        self._returned = returned
        self._recordings: dict[Key, list[Recording]] = {}
        self._warm: set[tuple[Key, int]] = set()
        self._settings = _settings()
        self._times_forgotten = shared.times_forgotten

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the code; the list is cleared."""
        shared = self._shared
        if shared.times_forgotten != self._times_forgotten:
            self._times_forgotten = shared.times_forgotten
            self._recordings = {}
        if shared.enabled:
            why = self._elsewhere()
            results = self._replayed(inputs) if why is None else why
            if not isinstance(results, str):
                return results
            if results != FIRST:
                shared.say(f"{self._kind} graph ran without its CUDA graph: {results}")
        return self._code(inputs)

    def _elsewhere(self) -> str | None:
        """Return why this call is not one for a CUDA graph, whatever its inputs are."""
        if torch.cuda.is_current_stream_capturing():
            return "the caller is capturing one"
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 (its only home)
            return "the caller watches what is dispatched"
        if self._settings != _settings():
            return "settings of cuDNN are others than when it was compiled"
        pool = self._shared.pool
        if pool is not None and pool.stream != _stream(pool.index):
            return "another stream"
        return None

    def _replayed(self, inputs: list[Any]) -> Sequence[Any] | str:
        """Return the results of a replay, or why there is none."""
        pool = self._pool()
        if not pool.lock.acquire(blocking=False):
            return "another thread was replaying"
        try:
            with torch.no_grad():
                key = self._key(inputs)
                known = self._recordings.get(key, ())
                recording = next((x for x in known if x.fits(inputs)), None)
                if recording is None:
                    found = self._recorded(key, inputs, pool)
                    if not isinstance(found, Recording):
                        return found
                    recording = found
                    if why := self._too_much(pool):
                        return why
                # A recording may write wherever another one of its pool has kept something.
                if self._kind == "forward" and any(x.is_read() for x in self._shared.forward):
                    return "what an earlier call saved for its backward is still there"
                return recording.replay(inputs)
        finally:
            pool.lock.release()

    def _too_much(self, pool: Pool) -> str | None:
        """Stop where recordings hold more memory than they may, and say so."""
        held = pool_bytes(pool.index)
        whole = torch.cuda.get_device_properties(pool.index).total_memory
        if held <= self._shared.share * whole:
            return None
        self._shared.stop(f"recordings would hold {held >> 20} MiB")
        return "recordings would hold too much memory"

    def _pool(self) -> Pool:
        shared, index = self._shared, self._inputs.device
        if shared.pool is None:
            stream = _stream(index)
            is_inference = self._kind == "inference"
            shared.pool = inference_pool(index, stream) if is_inference else Pool(index, stream)
        return shared.pool

    def _key(self, inputs: Sequence[Any]) -> Key:
        """Return what the code's sizes depend on."""
        known = self._inputs
        if not known.integers and not known.symbolic:
            return ()
        tensors = (inputs[i] for i in known.symbolic)
        return (
            *(inputs[i] for i in known.integers),
            *((tuple(x.shape), x.stride()) for x in tensors),
        )

    def _recorded(self, key: Key, inputs: Sequence[Any], pool: Pool) -> Recording | str:
        """Return a new recording for these inputs, or why there is none."""
        why = self._premature(key) or _unusual(inputs, self._inputs.device)
        fixed = None if why else self._fixed(inputs)
        if fixed is None:
            return why or "its forward graph was not replayed"
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                made = Recording(self._code, inputs, fixed, pool, self._returned)
        except Exception as error:  # noqa: BLE001 (whatever it is, the code itself still runs)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._shared.stop(f"the {self._kind} graph could not be recorded: {why}")
            return why
        self._recordings.setdefault(key, []).append(made)
        if self._kind == "forward":
            self._shared.forward.append(made)
        self._shared.say(
            f"{self._kind} graph recorded as CUDA graph {self._number}; its pool has "
            f"{pool.bytes >> 20} MiB"
        )
        return made

    @property
    def _number(self) -> int:
        return sum(map(len, self._recordings.values()))

    def _premature(self, key: Key) -> str | None:
        """Return why nothing is recorded whatever the inputs are; None if something may be."""
        here = (key, threading.get_ident())
        if here not in self._warm:
            # Libraries choose kernels and load code in the first call, of each thread.
            if len(self._warm) < MOST_KEYS:
                self._warm.add(here)
            return FIRST
        if self._number == MOST_RECORDINGS:
            return f"{MOST_RECORDINGS} recordings are made, for other sizes or parameters elsewhere"
        return None

    def _fixed(self, inputs: Sequence[Any]) -> Sequence[int] | None:
        """Return which inputs are read where they are; None where they may not be."""
        fixed = [i for i in self._inputs.fixed if isinstance(inputs[i], torch.Tensor)]
        if self._kind != "backward":
            return fixed
        addresses = {i: inputs[i].data_ptr() for i in fixed}
        for forward in self._shared.forward:
            kept = forward.keeps.intersection(addresses.values())
            if kept:
                parameters = forward.reads
                return [
                    i
                    for i in fixed
                    if addresses[i] in kept or inputs[i].untyped_storage().data_ptr() in parameters
                ]
        return None


def _unusual(inputs: Sequence[Any], index: int) -> str | None:
    """Return why these inputs are not copied; None if they may be."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if any(type(x) not in plain for x in tensors):
        return "an input is of a subclass of tensor"
    if any(x.device.type != "cuda" or x.device.index != index for x in tensors):
        return "an input is on another device"
    return None


def _stream(index: int) -> int:
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 (as Inductor's own code)
    return stream


def _settings() -> tuple[Any, ...]:
    """Return what libraries' kernels depend on, beside their inputs, and Dynamo does not guard."""
    precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter  # noqa: SLF001
    return (
        torch._C._get_cudnn_enabled(),  # noqa: SLF001 (no import of torch.backends in each call)
        torch._C._get_cudnn_benchmark(),  # noqa: SLF001
        torch._C._get_cudnn_deterministic(),  # noqa: SLF001
        precision("cuda", "conv"),
        precision("cuda", "matmul"),
    )
