"""Kernels on GPUs other than those that their plans and conditions were measured on.

There a kernel is left alone, unless somebody asks for it to be measured (``tune="full"``). Then it
may take something's place, is cut by the plan that a search on that GPU finds, if it has one
(``tuning.plan_search``), and stays if the graph gives the same and is shown to be faster with it
(``tuning.variants``).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MEASURED = (9, 0)
"""Compute capability of the GPUs that times and plans are from: an H100 and an H200."""

_P = TypeVar("_P", bound=NamedTuple)
Limits = Mapping[str, tuple[int, int]]
"""Fields of a plan that may be any power of two between these two, or number, if counted by one."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a plan is for."""

    run: Callable[..., Any]
    """Launches kernels; it takes them, what is given, and a plan."""
    kernels: Sequence[Any]
    """As `run` takes them, perhaps wrapped for a trace."""
    given: Sequence[Any]
    """Tensors, numbers, sequences of them, or None."""
    reference: Callable[..., Any]
    """Takes what is given and computes the same."""
    limits: Limits
    """Fields of a plan that may be others, each whatever the rest is."""
    positive: Sequence[Tensor | None] = ()
    """Those that are given of which only positive numbers make sense, such as variances."""


Search = Callable[[Any, Launch], Any]
"""Returns the plan for a launch on this GPU, by the one that was measured on another."""


@dataclass
class Elsewhere:
    """What holds while a graph is compiled."""

    search: Search
    asked: bool = False
    """Whether a kernel was let take something's place that was not measured on its GPU."""


_now: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


@contextlib.contextmanager
def used_elsewhere(search: Search, *, allowed: bool = True) -> Iterator[Elsewhere]:
    """Let kernels take something's place on a GPU that they were not measured on, or don't."""
    now = Elsewhere(search)
    token = _now.set(now if allowed else None)
    try:
        yield now
    finally:
        _now.reset(token)


def is_elsewhere(inputs: Sequence[Any]) -> bool:
    """Whether any of a graph's inputs is on a GPU that kernels were not measured on."""
    return any(isinstance(x, Tensor) and _is_elsewhere(x) for x in inputs)


def unmeasured(x: Tensor) -> str | None:
    """Return why nothing is known of how fast kernels are where a CUDA tensor is, or None."""
    if _is_measured(x):
        return None
    now = _now.get()
    if now is None:
        return (
            "it was measured on GPUs of compute capability 9.0; "
            'options={"tune": "full"} measures it on this one'
        )
    now.asked = True
    return None


def _is_measured(x: Tensor) -> bool:
    return torch.cuda.get_device_capability(x.device) == MEASURED


def plan_here(plan: _P, launch: Launch) -> _P:
    """Return the plan to launch kernels with: the H100's, which is given, or one for this GPU."""
    now = _now.get()
    if now is None:
        return plan
    leaves = pytree.tree_leaves(list(launch.given))
    first = next(x for x in leaves if isinstance(x, Tensor))
    if not _is_elsewhere(first) or any(map(_is_symbolic, leaves)):
        return plan
    found: _P = now.search(plan, launch)
    return found


def _is_elsewhere(x: Tensor) -> bool:
    return x.device.type == "cuda" and not _is_measured(x)


def _is_symbolic(x: Any) -> bool:
    if isinstance(x, Tensor):
        return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))
    return isinstance(x, (torch.SymInt, torch.SymFloat))
