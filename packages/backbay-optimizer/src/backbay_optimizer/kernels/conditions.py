"""What all kernels need before one is registered or launched, or takes something's place."""

import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What the kernels take."""

SECOND_DIMENSION = 65535
"""Programs in the second dimension of a grid, at most, as CUDA has it."""


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed, without importing it."""
    return importlib.util.find_spec("triton") is not None


def unfit(x: Tensor, *others: Tensor) -> str | None:
    """Return why no kernel takes a tensor, with others of its dtype, or None."""
    if x.device.type != "cuda":
        return f"the tensor is on {x.device.type}, not on cuda"
    if not has_triton():
        return "Triton is not installed"
    dtypes = [t.dtype for t in (x, *others)]
    if dtypes[0] not in DTYPES or len({*dtypes}) > 1:
        return f"no kernel for {' by '.join(map(str, dtypes))}"
    return None


def device_code(kernel: ModuleType) -> str:
    """Return the text of a kernel's device code, without importing it: that imports Triton.

    Compiled graphs that are kept on disk depend on it, and their keys name only what is called
    forward. What it takes from another kernel's device code is in that one's text.
    """
    path = Path(str(kernel.__file__))
    return _with_others(path.with_name(f"{path.stem}_device.py"))


def _with_others(path: Path) -> str:
    code = path.read_text("utf-8")
    others = re.findall(r"^from backbay_optimizer\.kernels\.(\w+) import", code, re.MULTILINE)
    return "".join([code, *(_with_others(path.with_name(f"{x}.py")) for x in others)])


def widened(x: Tensor) -> Tensor:
    """Return a tensor in float32 if it has fewer bits, as references and kernels compute."""
    return x.float() if x.dtype.itemsize < torch.float32.itemsize else x


def registers(
    namespace: dict[str, Any], names: Sequence[str], operators: Callable[[], Sequence[Any]]
) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``: its operators are registered when one is first asked for.

    Registering them imports Triton.

    Args:
        namespace: the module's globals, in which the operators are put then.
        names: of the operators, in it.
        operators: registers and returns them, in the order of their names.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        namespace.update(zip(names, operators(), strict=True))
        return namespace[name]

    return find
