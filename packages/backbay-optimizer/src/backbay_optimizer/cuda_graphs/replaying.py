"""Compiled code that is replayed where that is safe, and runs as it is everywhere else."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay import compile_log
from backbay_optimizer.cuda_graphs.capture import Pool, pool_bytes, pool_of
from backbay_optimizer.cuda_graphs.recording import Boxed, Recording

MOST_RECORDINGS = 8
"""Of one of Dynamo's graphs: for other sizes, or parameters elsewhere. More are not made."""
MOST_KEYS = 64
"""Sizes that are remembered to have been seen."""
FIRST = "the first call of its kind"
Key = tuple[Any, ...]


@dataclass(eq=False, frozen=True)
class Held:
    """A pool, and what is recorded in it."""

    pool: Pool
    recordings: dict[Key, list[Recording]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """How many recordings there are."""
        return sum(map(len, self.recordings.values()))


@dataclass(eq=False)
class Recordings:
    """What is recorded of one of Dynamo's graphs, and whether it is used."""

    name: str
    """The backend, for the compile log."""
    share: float = 0.1
    """The part of a device's memory that all pools together may hold."""
    enabled: bool = True
    """Whether anything is recorded or replayed."""
    stopped: bool = False
    """Whether that is over: nothing is recorded or replayed any more."""
    refused: str | None = None
    """Why code of it can't be recorded, if some can't."""
    writes: bool = False
    """Whether its code writes inputs: buffers, say."""
    held: Held | None = None
    _said: set[str] = field(default_factory=set)

    def forget(self) -> None:
        """Release what was recorded."""
        self.held = None

    def refuse(self, why: str) -> None:
        """Keep why code of it is not recorded."""
        self.refused = f"inference graph has no CUDA graph: {why}"
        self.say(self.refused)

    def stop(self, why: str) -> None:
        """Record and replay nothing from now on."""
        self.stopped = True
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
    fixed: Sequence[int] = ()
    """Which are parameters or buffers."""


class Replayed:
    """Compiled code; the second call of each kind records it, and later ones replay that."""

    def __init__(self, code: Boxed, inputs: Inputs, shared: Recordings) -> None:
        """Hold the code.

        Args:
            code: as Inductor made it.
            inputs: what is known of its inputs.
            shared: has what is recorded.
        """
        self._code = code
        self._inputs = inputs
        self._shared = shared
        self._integers: tuple[int, ...] | None = None
        """Which inputs are sizes; None until the first call."""
        self._warm: set[tuple[Key, int]] = set()
        self._settings = _settings()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the code; the list is cleared."""
        shared = self._shared
        if not shared.enabled or shared.stopped:
            return self._code(inputs)
        results = self._elsewhere() or self._replayed(inputs)
        if not isinstance(results, str):
            return results
        if results != FIRST:
            shared.say(f"inference graph ran without its CUDA graph: {results}")
        return self._code(inputs)

    def _elsewhere(self) -> str | None:
        """Return why this call is not one for a CUDA graph, whatever its inputs are."""
        if torch.cuda.is_current_stream_capturing():
            return "the caller is capturing one"
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 (its only home)
            return "the caller watches what is dispatched"
        if self._settings != _settings():
            return "settings of cuDNN are others than when it was compiled"
        return None

    def _replayed(self, inputs: list[Any]) -> Sequence[Any] | str:
        """Return the results of a replay, or why there is none."""
        stream, held = _stream(self._inputs.device), self._shared.held
        if held is None:
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
        key = self._key(inputs)
        known = held.recordings.get(key, ())
        recording = next((x for x in known if x.fits(inputs)), None)
        if recording is not None:
            return recording
        why = self._premature(key, held) or _unusual(inputs, self._inputs.device)
        if why is not None:
            return why
        made = self._recorded(inputs, held)
        if isinstance(made, str):
            return made
        if self._stop_if_large(held.pool):
            return "recordings would hold too much memory"
        held.recordings.setdefault(key, []).append(made)
        self._shared.say(
            f"inference graph recorded as CUDA graph {held.number}; its pool has "
            f"{held.pool.bytes >> 20} MiB"
        )
        return made

    def _recorded(self, inputs: Sequence[Any], held: Held) -> Recording | str:
        fixed = [i for i in self._inputs.fixed if isinstance(inputs[i], torch.Tensor)]
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                return Recording(self._code, inputs, fixed, held.pool)
        except Exception as error:  # noqa: BLE001 (whatever it is, the code itself still runs)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._shared.stop(f"the inference graph could not be recorded: {why}")
            return why

    def _stop_if_large(self, pool: Pool) -> bool:
        """Stop where recordings hold more memory than they may, and return whether they do."""
        allocated = pool_bytes(pool.index)
        whole = torch.cuda.get_device_properties(pool.index).total_memory
        if allocated <= self._shared.share * whole:
            return False
        self._shared.stop(f"recordings would hold {allocated >> 20} MiB")
        return True

    def _key(self, inputs: Sequence[Any]) -> Key:
        """Return what tells recordings apart: the code, and the sizes that it is given."""
        if self._integers is None:
            self._integers = tuple(i for i, x in enumerate(inputs) if isinstance(x, int))
        return (id(self), *(inputs[i] for i in self._integers))

    def _premature(self, key: Key, held: Held) -> str | None:
        """Return why nothing is recorded whatever the inputs are; None if something may be."""
        here = (key, threading.get_ident())
        if here not in self._warm:
            # Libraries choose kernels and load code in the first call, of each thread.
            if len(self._warm) < MOST_KEYS:
                self._warm.add(here)
            return FIRST
        if held.number >= MOST_RECORDINGS:
            return f"{MOST_RECORDINGS} recordings are made, for other sizes or parameters elsewhere"
        return None


def _unusual(inputs: Sequence[Any], index: int) -> str | None:
    """Return why these inputs are not copied; None if they may be."""
    strange = [x for x in inputs if not isinstance(x, (torch.Tensor, int))]
    if strange:
        return f"an input is a {type(strange[0]).__name__}"
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if any(type(x) not in plain for x in tensors):
        return "an input is of a subclass of tensor"
    if any(x.device.type != "cuda" or x.device.index != index for x in tensors):
        return "an input is on another device"
    if any(x.layout != torch.strided for x in tensors):
        return "an input is sparse"
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
