"""How much of a graph is a backend's own work, and how much does it leave to eager's kernels?

The graph as it came is run under a mode that sees every operator that torch dispatches; then the
compiled code is, on the same inputs. What torch still dispatches is not the backend's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backbay.proof.dispatched import counting


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


def work_of(call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Counter[str]]:
    """Return the result of a call, and the operators that torch dispatched for it."""
    with counting() as work:
        result = call(*args)
    return result, work
