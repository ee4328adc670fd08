"""Plans of kernels on a GPU that they were not measured on: found there, by timing them.

The search begins at the H100's plan and goes to a neighbour that is faster until none is, as
Inductor's ``coordinate_descent_tuning`` does. A plan is one only if the kernel then gives what its
reference gives: nobody has tried these plans on this GPU.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from backbay_optimizer.cuda_graphs.capture import exclusive, launching
from backbay_optimizer.kernels.elsewhere import Launch, Limits
from backbay_optimizer.tuning import found_plans

LAUNCHES = 24
"""Plans of a kernel that are timed, at most, for inputs of one kind."""

GAIN = 0.02
"""Of the time, by which a plan must be faster to be gone on from: less is noise."""

_MOST_OFF = {
    torch.float32: 1e-3,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float8_e4m3fn: 0.08,  # one step at its upper end
}
"""Of the largest element, that a result may differ from the reference's: a few roundings."""
_COMPARED = 2**24
"""Elements that are compared at once, in float64: results may fill a GPU's memory."""
_BY_ONE = frozenset({"stages"})
"""Fields that go up and down by one; the others are halved and doubled."""
_HELD = ("block", "height")
"""How fields begin that say how much a program holds."""
_log = logging.getLogger(__name__)
_P = TypeVar("_P", bound=NamedTuple)


class NoPlanError(RuntimeError):
    """A kernel does not run on this GPU, or gives something else than its reference."""


def found(plan: _P, launch: Launch) -> _P:
    """Return the plan for this GPU: the one that is kept, or one that is searched and kept.

    Raises:
        NoPlanError: with no plan that was tried the kernels run here and are right.
    """
    leaves = pytree.tree_leaves(list(launch.given))
    device = next(x.device for x in leaves if isinstance(x, Tensor))
    key = found_plans.key_of(launch.run, (plan, launch.limits), leaves, device)
    known = found_plans.read(key, plan)
    if known is None:
        try:
            known = searched(plan, launch)
        except NoPlanError as error:
            found_plans.write_none(key, str(error))
            raise
        found_plans.write(key, known)
    if isinstance(known, str):
        raise NoPlanError(known)
    return known


# 1. What is tried


def searched(plan: _P, launch: Launch) -> _P:
    """Return the plan that a search finds on this GPU, from a first one.

    Raises:
        NoPlanError: with no plan that was tried the kernels run here and are right.
    """
    from torch._higher_order_ops.triton_kernel_wrap import (  # noqa: PLC0415 (as late as Inductor)
        TraceableTritonKernelWrapper as Wrapped,
    )

    kernels = pytree.tree_map_only(Wrapped, lambda x: x.kernel, list(launch.kernels))
    positive = {id(x) for x in launch.positive}
    specs = pytree.tree_map_only(
        Tensor, lambda x: _Spec.of(x, is_positive=id(x) in positive), list(launch.given)
    )
    first = next(x for x in pytree.tree_leaves(specs) if isinstance(x, _Spec))

    def search() -> _P:
        drawn = torch.Generator(first.device).manual_seed(0)
        with torch.no_grad(), _on(first.device):
            made = pytree.tree_map_only(_Spec, lambda x: x.made(drawn), specs)
            wanted = launch.reference(*made)
            trial = _Trial(lambda how: launch.run(*kernels, *made, how), wanted)
            return _descended(plan, launch.limits, trial.milliseconds, launch.run.__qualname__)

    # In a thread of its own, in which nothing is traced and nothing is fake.
    with exclusive, ThreadPoolExecutor(1) as thread:
        return thread.submit(search).result()


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one, which each thread has of its own."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@dataclass(frozen=True)
class _Spec:
    """What is known of a tensor that is not there yet."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_positive: bool

    @classmethod
    def of(cls, x: Tensor, *, is_positive: bool) -> "_Spec":
        return cls(tuple(x.shape), x.stride(), x.dtype, x.device, is_positive)

    def made(self, generator: torch.Generator) -> Tensor:
        """Return random numbers. Elements that share a place, as of an expanded tensor, stay so."""
        x = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,))
        if self.is_positive:
            flat.uniform_(0.5, 1.5, generator=generator)
        else:
            flat.normal_(generator=generator)
        return x


@dataclass(frozen=True)
class _Trial:
    """A launch that is tried with one plan after another."""

    launch: Callable[[Any], Any]
    wanted: Any

    def milliseconds(self, plan: Any) -> float:
        """Return how long it takes with a plan; infinity if it fails or is wrong."""
        try:
            results = self.launch(plan)
            is_right = _agree(results, self.wanted)
            # The next plan gets this memory: what it leaves unwritten must not be right.
            for x in pytree.tree_leaves(results):
                if isinstance(x, Tensor) and x.is_floating_point():
                    x.fill_(torch.nan)
            del results
            if not is_right:
                _log.warning("%s is wrong here: its results are not the reference's", plan)
                return math.inf
            return _timed(lambda: self.launch(plan))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (Triton's own, of many kinds: it doesn't run)
            _log.info("%s doesn't run here: %s", plan, error)
            return math.inf


def _timed(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench  # noqa: PLC0415 (imports Triton)

    graph = torch.cuda.CUDAGraph()  # else the time may be the host's, of launches in a row
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch has no stub
    with launching, torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        call()
    milliseconds: float = do_bench(graph.replay, warmup=5, rep=20, return_mode="median")
    return milliseconds


def _agree(results: Any, wanted: Any) -> bool:
    pairs = zip(pytree.tree_leaves(results), pytree.tree_leaves(wanted), strict=True)
    return all(_agrees(x, y) for x, y in pairs if isinstance(x, Tensor))


def _agrees(x: Tensor, wanted: Tensor) -> bool:
    if x.shape != wanted.shape:
        return False
    most = _MOST_OFF.get(x.dtype, 0.0)
    one, other = (torch.split(t.reshape(-1), _COMPARED) for t in (x, wanted))
    if most and x.numel():
        most *= max(float(_finite(y.double()).abs().max()) for y in other)
    return all(_are_near(a.double(), b.double(), most) for a, b in zip(one, other, strict=True))


def _are_near(x: Tensor, wanted: Tensor, most: float) -> bool:
    if not torch.equal(x.isfinite(), wanted.isfinite()):
        return False
    return bool(((_finite(x) - _finite(wanted)).abs() <= most).all())


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0)


# 2. The search


def _descended(plan: _P, limits: Limits, milliseconds: Callable[[_P], float], name: str) -> _P:
    """Return the fastest plan that is reached from the first one by steps that each are faster."""
    times: dict[_P, float] = {}

    def timed(how: _P) -> float:
        if how not in times:
            times[how] = milliseconds(how) if len(times) < LAUNCHES else math.inf
        return times[how]

    best = next((x for x in smaller(plan, limits) if timed(x) < math.inf), None)
    if best is None:
        raise NoPlanError(f"{name}: none of {len(times)} plans runs on this GPU and is right")
    before = None
    while best != before:
        before = best
        for field in limits:
            for up in (True, False):
                best = _walked(best, field, limits[field], timed, up=up)
    return best


def _walked(
    best: _P, field: str, ends: tuple[int, int], timed: Callable[[_P], float], *, up: bool
) -> _P:
    """Return the plan that is reached by steps of one field in one direction."""
    while (step := _stepped(best, field, ends, up=up)) is not None:
        if timed(step) > (1 - GAIN) * timed(best):
            break
        best = step
    return best


def _stepped(plan: _P, field: str, ends: tuple[int, int], *, up: bool) -> _P | None:
    n: int = getattr(plan, field)
    n = (n + 1 if up else n - 1) if field in _BY_ONE else 2 * n if up else n // 2
    return plan._replace(**{field: n}) if ends[0] <= n <= ends[1] else None


def smaller(plan: _P, limits: Limits) -> Iterator[_P]:
    """Yield a plan, and ever smaller ones: a multiprocessor may have less memory than an H100's."""
    while True:
        yield plan
        # First what is loaded ahead, then the largest side of a block.
        sizes = {f: getattr(plan, f) for f in limits if f.startswith(_HELD)}
        fields = [*_BY_ONE.intersection(limits), *sorted(sizes, key=sizes.__getitem__)[::-1]]
        steps = (_stepped(plan, f, limits[f], up=False) for f in fields)
        less = next((x for x in steps if x is not None), None)
        if less is None:
            return
        plan = less
