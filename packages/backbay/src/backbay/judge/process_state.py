"""What a process holds for everybody in it, and which of it a backend has left changed."""

import os
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_SUBNORMAL = 1e-40
"""Of float32."""
_CLOCKS = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "time")}

_SPEED = {
    "the number of threads": torch.get_num_threads,
    "matmul precision": torch.get_float32_matmul_precision,
    "TF32 in cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "cuDNN's benchmark mode": lambda: torch.backends.cudnn.benchmark,
    "the clocks of module time": lambda: [x for x, f in _CLOCKS.items() if getattr(time, x) != f],
}
"""Decides how fast others are."""


def _times_one(value: float) -> float:
    return (torch.tensor(value, dtype=torch.float32, device="cpu") * 1.0).item()


_VALUES = {
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "the gradient mode": torch.is_grad_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    # Torch sets it, and doesn't tell.
    "the flushing of subnormal numbers": lambda: not _times_one(_SUBNORMAL),
    "autocast": lambda: [torch.is_autocast_enabled(x) for x in ("cpu", "cuda")],
    "the stack of dispatch modes": lambda: list(map(type, _get_current_dispatch_mode_stack())),
    "the stack of function modes": lambda: list(map(type, _function_modes())),  # type: ignore[no-untyped-call]
}
"""Decides what others compute."""

_INDUCTORS = (
    *("_TORCHINDUCTOR_", "TRITON_PTXAS_PATH"),
    *("DISABLE_CUPTI_LAZY_REINIT", "TEARDOWN_CUPTI"),
)
"""Inductor's own notes to its children, where it has found CUDA's assembler, and what it tells the
profiler where a mode asks for CUDA graphs."""

_REST = {
    "the working directory": os.getcwd,
    "environment variables": lambda: {
        x: y for x, y in os.environ.items() if not x.startswith(_INDUCTORS)
    },
    "signal handlers": lambda: {x: signal.getsignal(x) for x in signal.valid_signals()},
    # Others change nothing for anybody, and torch's own autotuning leaves some.
    "warnings that are errors": lambda: [x for x in warnings.filters if x[0] == "error"],
}

_ALL: Mapping[str, Callable[[], Any]] = {**_VALUES, **_SPEED, **_REST}

State = Mapping[str, Any]


def state() -> State:
    """Return what others in this process depend on, by a name for each."""
    found = {}
    for name, look in _ALL.items():
        try:
            found[name] = look()
        except Exception:  # noqa: BLE001 (replaced by something that raises: that is a change, too)
            found[name] = None
    return found


def changed(before: State, after: State) -> tuple[str, ...]:
    """Return what is not as it was, in words."""
    return tuple(_worded(x, before[x], after[x]) for x in before if before[x] != after[x])


def changes_values(before: State, after: State) -> tuple[str, ...]:
    """Return those of `changed` that decide what others compute."""
    return tuple(_worded(x, before[x], after[x]) for x in _VALUES if before[x] != after[x])


def _worded(name: str, before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        other = sorted(str(x) for x in {*before, *after} if before.get(x) != after.get(x))
        return f"{name} ({', '.join(other[:3])}{', ...' if len(other) > 3 else ''})"  # noqa: PLR2004
    short = isinstance(before, bool | int | str | torch.dtype | torch.device)
    return f"{name} ({before} -> {after})" if short else name
