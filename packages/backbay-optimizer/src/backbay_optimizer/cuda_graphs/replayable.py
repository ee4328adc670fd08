"""Compiled code that is replayed where that is safe, and runs as it is everywhere else."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from backbay_optimizer.cuda_graphs.buffers import is_deferred
from backbay_optimizer.cuda_graphs.recording import Boxed, Recording
from backbay_optimizer.cuda_graphs.recordings import Recordings

MOST_KEYS = 64
"""Sizes that are remembered to have been seen."""
FIRST = "the first call of its kind"
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Inputs:
    """What is known of the inputs of compiled code before it runs."""

    device: int
    fixed: Sequence[int] = ()
    """Which are parameters or buffers."""


class Replayable(ABC):
    """Compiled code; the second call of each kind records it, and later ones replay that."""

    kind: ClassVar[str]
    """What the compile log calls it."""

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
        self._settings = library_settings()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the code; the list is cleared."""
        shared = self._shared
        if not shared.enabled or shared.stopped:
            return self._code(inputs)
        results = self._elsewhere() or self._replayed(inputs)
        if not isinstance(results, str):
            return results
        if results != FIRST:
            shared.say(f"{self.kind} ran without its CUDA graph: {results}")
        return self._code(inputs)

    @abstractmethod
    def _replayed(self, inputs: list[Any]) -> Sequence[Any] | str:
        """Return the results of a replay, or why there is none."""

    def _elsewhere(self) -> str | None:
        """Return why this call is not one for a CUDA graph, whatever its inputs are."""
        if torch.cuda.is_current_stream_capturing():
            return "the caller is capturing one"
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 (its only home)
            return "the caller watches what is dispatched"
        if self._settings != library_settings():
            return "settings of cuDNN or cuBLAS are others than when it was compiled"
        return None

    def _key(self, inputs: Sequence[Any]) -> Key:
        """Return what tells recordings apart: the code, and the sizes that it is given."""
        if self._integers is None:
            self._integers = tuple(i for i, x in enumerate(inputs) if isinstance(x, int))
        return (id(self), *(inputs[i] for i in self._integers))

    def _premature(self, key: Key) -> str | None:
        """Return why nothing is recorded yet; None if something may be."""
        here = (key, threading.get_ident())
        if here in self._warm:
            return None
        # Libraries choose kernels and load code in the first call, of each thread.
        if len(self._warm) >= MOST_KEYS:
            alive = {x.ident for x in threading.enumerate()}
            self._warm = {x for x in self._warm if x[1] in alive}
        if len(self._warm) < MOST_KEYS:
            self._warm.add(here)
        return FIRST

    def _recorded(self, record: Callable[[], Recording]) -> Recording | str:
        """Return what is recorded; all of it stops where that fails, and why is returned."""
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                return record()
        except Exception as error:  # noqa: BLE001 (whatever it is, the code itself still runs)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._shared.stop(f"the {self.kind} could not be recorded: {why}")
            return why


def unusual(inputs: Sequence[Any], index: int) -> str | None:
    """Return why these inputs are not copied; None if they may be."""
    strange = [x for x in inputs if not isinstance(x, (torch.Tensor, int))]
    if strange:
        return f"an input is a {type(strange[0]).__name__}"
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if any(type(x) not in plain for x in tensors):
        return "an input is of a subclass of tensor"
    if any(map(is_deferred, tensors)):
        return "an input is conjugated or negated where it is read"
    if any(x.device.type != "cuda" or x.device.index != index for x in tensors):
        return "an input is on another device"
    if any(x.layout != torch.strided for x in tensors):
        return "an input is sparse"
    return None


def current_stream(index: int) -> int:
    """Return the handle of the stream that this thread gives a device its work in."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 (as Inductor's own code)
    return stream


def library_settings() -> tuple[Any, ...]:
    """Return what libraries' kernels depend on, beside their inputs, and Dynamo does not guard."""
    precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter  # noqa: SLF001
    return (
        torch._C._get_cudnn_enabled(),  # noqa: SLF001 (no import of torch.backends in each call)
        torch._C._get_cudnn_benchmark(),  # noqa: SLF001
        torch._C._get_cudnn_deterministic(),  # noqa: SLF001
        torch._C._get_cublas_allow_fp16_accumulation(),  # noqa: SLF001
        precision("cuda", "conv"),
        precision("cuda", "matmul"),
    )
