"""Which lines of the user's call the operators that run uncompiled."""

import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from backbay.diagnose.subject import Subject
from backbay.proof import unchanged
from backbay.proof.state import attributes_kept
from backbay.reporting.lines import Place, innermost


class _Calls(TorchFunctionMode):
    """Notes who calls torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, dict[str, None]] = defaultdict(dict)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note a call, and make it."""
        stack = traceback.extract_stack(sys._getframe().f_back)  # noqa: SLF001 (documented)
        line = innermost(Place(x.filename, x.lineno or 0, x.name) for x in stack)
        if line:
            self.lines[operator(getattr(func, "__name__", ""))][line] = None
        return func(*args, **(kwargs or {}))


def lines_of(subject: Subject) -> dict[str, tuple[str, ...]]:
    """Return the lines that call each of torch's functions, in one uncompiled step.

    What the gradient of one calls has no line.
    """
    step = subject.step
    with _Calls() as calls, attributes_kept(subject.workload.model), unchanged(step):
        step(subject.workload.model)
    return {name: tuple(lines) for name, lines in calls.lines.items()}


def operator(name: str) -> str:
    """Return what a function of torch's and the profiler's event of it are both called."""
    return name.rpartition("::")[2].strip("_")
