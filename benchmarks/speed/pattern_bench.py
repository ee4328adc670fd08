"""Measures single patterns: what a worker does with a shape of ``pattern_cases``."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from backbay.causes import one_line
from backbay.kit.observing import collected
from backbay.timing import kernels
from backbay.timing.device import device_name, synchronize
from backbay.timing.gpu_work import GpuWork
from speed import arms, requests
from speed.device import Flushed, replayed
from speed.model_bench import relative
from speed.pattern_cases import Pattern, Program, pattern, program

TOLERANCE = 0.01
"""Relative root-mean-square difference from eager in float32 that any arm may have."""
BESIDE_EAGER = 1.5
"""And so many times eager's own, where that is more."""


class PatternBench:
    """One pattern at one shape, and every arm that it was compiled with."""

    def __init__(self, request: requests.Prepare) -> None:
        self._device = torch.device(request.device)
        self._pattern: Pattern = pattern(request.name)
        self._program: Program = program(
            self._pattern, request.size, device=self._device, seed=request.seed
        )
        self._flushed = Flushed(self._device)
        self._calls: dict[str, tuple[Callable[[], Any], bool]] = {}
        torch._dynamo.reset()  # noqa: SLF001 (another shape's code is not to be found)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._reference, self._flops = self._in_float32()
        self._allowed = max(TOLERANCE, BESIDE_EAGER * self._error(self._step(arms.EAGER)()))

    def prepared(self) -> requests.Prepared:
        """Return what was built."""
        return requests.Prepared(
            device_name=device_name(self._device),
            bytes_moved=self._program.bytes_moved or self._least_bytes(),
            flops=self._flops if self._program.flops is None else self._program.flops,
        )

    def ready(self, arm: str, caches: str, *, shared: bool = False) -> requests.Readied:
        """Compile, compare with float32, and capture in a CUDA graph where there are any."""
        if arm == arms.ALT and self._program.alternative is None:
            return requests.Readied(status="failed", reason="no alternative")
        if arm != arms.EAGER:
            arms.warm_up(arms.split(arm)[0], str(self._device), train=self._pattern.train)
        with arms.cached(arm, caches, shared=shared) as cold, collected() as reports:
            start = time.perf_counter()
            step, results, notes = self._first_call(arm)
            synchronize(self._device)
            first_s = time.perf_counter() - start
            step()
        error = self._error(results)
        if not error <= self._allowed:
            reason = f"differs from float32 by {error:.2g}, {self._allowed:.2g} is allowed"
            return requests.Readied(status="wrong", reason=reason, error=error)
        notes += (*arms.rewrites(arm, reports), *self._keep(arm, step))
        return requests.Readied(
            status="ok",
            compile_s=first_s if cold and arm != arms.EAGER else None,
            error=error,
            notes=notes,
        )

    def settle(self, arm: str) -> requests.Settled:
        """Take the time of a step; all that must be recorded was."""
        return requests.Settled(step_s=max(self.seconds(arm, 1, 3) / 3, 1e-7))

    def work(self, arm: str) -> GpuWork | None:
        """Return what the device does during a step."""
        return kernels.gpu_work(self._calls[arm][0], self._device)

    def seconds(self, arm: str, warmups: int, calls: int) -> float:
        """Return the median of single calls on cold caches, times their number."""
        call, graph = self._calls[arm]
        for _ in range(warmups):
            call()
        return self._flushed.seconds(call, calls, replayed=graph)

    def prove(self, arms: tuple[str, ...], caches: str) -> dict[str, requests.Verdict]:  # noqa: ARG002
        """Prove nothing: each arm was compared with float32 before it got ready."""
        return {}

    def _first_call(
        self, arm: str
    ) -> tuple[Callable[[], Any], list[torch.Tensor], tuple[str, ...]]:
        """Return the step, its results, and what must be said of it."""
        step = self._step(arm)
        try:
            return step, step(), ()
        except Exception as error:
            if arm != arms.ALT:
                raise
            step = self._step(arm, compiled=False)
            return step, step(), (f"not compiled: {one_line(error)}",)

    def _keep(self, arm: str, step: Callable[[], Any]) -> tuple[str, ...]:
        self._calls[arm] = (step, False)
        if self._device.type != "cuda":
            return ()
        if arms.graphed(arm):
            return ("timed by events: it replays its own CUDA graph",)
        try:
            self._calls[arm] = (replayed(step), True)
        except Exception as error:  # noqa: BLE001 (a capture raises anything)
            torch.cuda.synchronize()
            return (f"timed by events: no CUDA graph: {one_line(error)}",)
        return ()

    def _step(self, arm: str, *, compiled: bool = True) -> Callable[[], list[torch.Tensor]]:
        program = self._program
        function, inputs = program.function, program.inputs
        if arm == arms.ALT:
            assert program.alternative is not None
            function, inputs = program.alternative, program.alternative_inputs or inputs
        return stepping(
            arms.compiled(function, arm, dynamic=False) if compiled else function,
            inputs,
            cotangent=program.cotangent if self._pattern.train else None,
        )

    def _in_float32(self) -> tuple[list[torch.Tensor], int]:
        program = self._program
        inputs = [_wide(x) for x in program.inputs]
        cotangent = None if program.cotangent is None else program.cotangent.float()
        step = stepping(
            program.function, inputs, cotangent=cotangent if self._pattern.train else None
        )
        with FlopCounterMode(display=False) as counted:
            results = step()
        return results, counted.get_total_flops()

    def _error(self, results: Sequence[torch.Tensor]) -> float:
        pairs = zip(results, self._reference, strict=True)
        return max(relative(got, wanted) for got, wanted in pairs)

    def _least_bytes(self) -> int:
        """Count each operand once, forward and again backward: read or written."""
        program = self._program
        read = _bytes(program.inputs)
        with torch.no_grad():
            written = _bytes(_tensors(program.function(*program.inputs)))
        if not self._pattern.train:
            return read + written
        cotangent = program.cotangent
        given = 0 if cotangent is None or not cotangent.dim() else _bytes([cotangent])
        return 2 * read + written + given + _bytes([x for x in program.inputs if x.requires_grad])


def stepping(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    cotangent: torch.Tensor | None,
) -> Callable[[], list[torch.Tensor]]:
    """Return a call of forward, or of forward and backward where there is a cotangent."""
    if cotangent is None:

        def forward() -> list[torch.Tensor]:
            with torch.no_grad():
                return _tensors(function(*inputs))

        return forward
    leaves = [x for x in inputs if x.requires_grad]

    def both() -> list[torch.Tensor]:
        output = function(*inputs)
        return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]

    return both


def _wide(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    return x.detach().float().requires_grad_(x.requires_grad)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(min(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in tensors)
