"""Counts the operators that torch dispatches to its own kernels, compiled code's included."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TORCHS = {"aten", "prims"}
"""Namespaces of torch's own kernels; an operator of another is its provider's own work."""
_FREE = {
    "alias", "clone", "copy", "detach", "empty", "empty_like", "empty_strided", "is_pinned",
    "lift_fresh", "new_empty", "new_empty_strided", "ones_like", "resize", "set", "zeros_like",
}  # fmt: skip
"""Operators that allocate, fill, move or ask (as ``Tensor.__dlpack__`` does), and compute nothing.
"""


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Counts the operators that torch dispatches to its own kernels and that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether Dynamo may run what it compiled while this is active."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, torch._ops.OpOverload) and func.namespace in _TORCHS:  # noqa: SLF001
            # In place, or into a given tensor, it is the same work.
            name = func.overloadpacket.__name__.removesuffix("_")
            if not func.is_view and name not in _FREE:
                self.work[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what torch dispatches while the block runs, compiled code included."""
    with Dispatched() as mode:
        yield mode.work
