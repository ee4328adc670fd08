"""How much of a graph is a backend's own work, and how much does it leave to eager's kernels?

The graph as it came is run under a mode that sees every operator that torch dispatches; then the
compiled code is, on the same inputs. What torch still dispatches is not the backend's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TORCHS = {"aten", "prims"}
"""Namespaces of eager's kernels; an operator of another is its provider's own work."""
_FREE = {
    "alias", "clone", "copy", "detach", "empty", "empty_like", "empty_strided", "lift_fresh",
    "new_empty", "new_empty_strided", "set", "resize",
}  # fmt: skip
"""Operators that allocate or move, and compute nothing."""


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """What torch dispatched for a graph as it came, and for what was compiled from it."""

    graph: Counter[str]
    """Operators that compute, by name without overload, of the graph as it came."""
    dispatched: Counter[str]
    """The same of the compiled code."""

    @property
    def share(self) -> float:
        """Share of the graph's operators that torch does not dispatch any more.

        Counted as a whole, not name by name: a decomposition changes names, and is not code.
        """
        total = self.graph.total()
        return 1 - min(total, self.dispatched.total()) / total if total else 1.0

    def __str__(self) -> str:
        """Word it in a few words."""
        left = ", ".join(f"{name} x{n}" for name, n in self.dispatched.most_common(4))
        of = f"{self.share:.0%} of {self.graph.total()} operators"
        return f"{of}; torch still runs {left}" if left else of


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Counts the operators that torch dispatches and that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_torchs = isinstance(func, torch._ops.OpOverload) and func.namespace in _TORCHS  # noqa: SLF001
        # In place, or into a given tensor, it is the same work.
        name = func.overloadpacket.__name__.removesuffix("_") if is_torchs else ""
        if is_torchs and not func.is_view and name not in _FREE:
            self.work[name] += 1
        return func(*args, **(kwargs or {}))


def work_of(call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Counter[str]]:
    """Return the result of a call, and the operators that torch dispatched for it."""
    with Counting() as counting:
        result = call(*args)
    return result, counting.work
