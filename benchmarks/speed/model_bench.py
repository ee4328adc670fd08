"""Measures whole models: what a worker does with a case of ``model_cases``."""

import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay import compile_log
from backbay.causes import one_line
from backbay.kit.observing import collected
from backbay.proof import Outcome, Step, Workload, make_golden, observe
from backbay.timing import kernels
from backbay.timing.device import device_name, synchronize
from backbay.timing.gpu_work import GpuWork
from backbay.timing.memory import peak_bytes, reset_peak
from speed import arms, requests
from speed.device import block_seconds
from speed.model_cases import Case, built, case

GROSS = 0.3
"""A larger difference from eager's results is a fault, not rounding; the proof judges finely."""
_RECOMPILE_LIMIT = (
    256  # all arms compile the same code: none may be refused for the others' entries
)
SETTLING = 10
"""Steps after the first one. Backbay times CUDA graphs in the second call of a graph, and where
that shows nothing twice more, two calls later each; then it takes two calls to record them."""


class ModelBench:
    """One model, and every arm that it was compiled with."""

    def __init__(self, request: requests.Prepare) -> None:
        torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT  # noqa: SLF001 (its only home)
        self._request = request
        self._case: Case = case(request.name)
        self._device = torch.device(request.device)
        self._calls: dict[str, Callable[..., Any]] = {}
        self._held: dict[str, int] = {}
        """Bytes that an arm has held since its first call."""
        self._workload: Workload | None = self._build(request.size)
        self._step: Step | None = self._stepping(self._workload)
        self._static_bytes = _allocated(self._device)
        self._outputs = self._results(self._workload.model)

    def prepared(self) -> requests.Prepared:
        """Return what was built."""
        return requests.Prepared(
            device_name=device_name(self._device), about=self._case.about(self._request.size)
        )

    def ready(self, arm: str, caches: str, *, shared: bool = False) -> requests.Readied:
        """Compile, and compare grossly with eager."""
        if arm == arms.HAND and not self._case.masked:
            return requests.Readied(status="failed", reason="no mask to take away by hand")
        assert self._workload is not None
        assert self._step is not None
        if arm != arms.EAGER:
            arms.warm_up(arms.split(arm)[0], self._request.device, train=self._case.train)
        cached = arms.cached(arm, caches, shared=shared)
        with cached as cold, arms.surrounded(arm), collected() as reports:
            call = self._calls[arm] = arms.compiled(self._workload.model, arm)
            self._step.clear_gradients()
            said = len(compile_log.records())
            before, start = _allocated(self._device), time.perf_counter()
            error = self._first_call(call)
            first_s = time.perf_counter() - start
        self._step.clear_gradients()
        self._held[arm] = _allocated(self._device) - before
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # others may compile on this device meanwhile
        wrong = not error <= GROSS
        return requests.Readied(
            status="wrong" if wrong else "ok",
            reason=f"differs from eager by {error:.2g} of its size" if wrong else "",
            compile_s=first_s if cold and arm != arms.EAGER else None,
            error=error,
            notes=(*arms.rewrites(arm, reports), *arms.replays(said)),
        )

    def settle(self, arm: str) -> requests.Settled:
        """Call it until it has decided about CUDA graphs and recorded them; take time and memory.

        The peak is what it takes beside the other arms: the model, its inputs, and its own.
        """
        step, call = self._step, self._calls[arm]
        assert step is not None
        said = len(compile_log.records())
        step.clear_gradients()
        before = _allocated(self._device)
        reset_peak(self._device)
        with arms.surrounded(arm):
            for _ in range(SETTLING):
                step(call)
        synchronize(self._device)
        peak = None
        if self._device.type == "cuda":  # elsewhere a process's peak is the largest arm's
            peak = (peak_bytes(self._device) or 0) - before + self._held[arm] + self._static_bytes
        return requests.Settled(
            step_s=self.seconds(arm, 1, 1), peak_bytes=peak, notes=arms.replays(said)
        )

    def work(self, arm: str) -> GpuWork | None:
        """Return what the device does during a step."""
        step, call = self._step, self._calls[arm]
        assert step is not None
        with arms.surrounded(arm):
            return kernels.gpu_work(lambda: step(call), self._device)

    def seconds(self, arm: str, warmups: int, calls: int) -> float:
        """Time steps in a row."""
        step, call = self._step, self._calls[arm]
        assert step is not None
        with arms.surrounded(arm):
            for _ in range(warmups):
                step(call)
            return block_seconds(lambda: step(call), calls, self._device)

    def prove(self, names: tuple[str, ...], caches: str) -> dict[str, requests.Verdict]:
        """Hold arms against float64 at the size for proofs: the same layers, fewer inputs.

        The first call is judged, and one behind those in which CUDA graphs are recorded.
        """
        size = "tiny" if self._request.size == "tiny" else "proof"
        self._forget()
        workload = self._build(size)
        golden = make_golden(workload, train=self._case.train, seed=self._request.seed)
        small = golden.at(workload)
        about = self._case.about(size) + (", reduced" if golden.reduced else "")
        verdicts: dict[str, requests.Verdict] = {}
        for arm in names:
            torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset is this)
            with arms.cached(arm, caches), arms.surrounded(arm), golden.context():
                call, said = arms.compiled(workload.model, arm), len(compile_log.records())
                try:
                    seen = self._outcomes(call, small)
                except Exception as error:  # noqa: BLE001 (a backend may raise anything)
                    reason = one_line(error)
                    verdicts[arm] = requests.Verdict(passed=False, reason=reason, about=about)
                    continue
            is_replayed = any(x.startswith("CUDA graphs used") for x in arms.replays(said))
            proof = max(map(golden.judge, seen), key=lambda x: (not x.passed, x.worst.ratio or 0.0))
            verdicts[arm] = requests.Verdict(
                passed=proof.passed,
                reason=proof.worst.reason,
                about=f"{about}, replayed" if is_replayed else about,
                ratio=proof.worst.ratio,
            )
        return verdicts

    def _outcomes(self, call: Callable[..., Any], workload: Workload) -> list[Outcome]:
        """Return what the first call gives; on a GPU, too, one that may replay what is recorded."""
        train, seed = self._case.train, self._request.seed
        first = observe(call, workload, train=train, seed=seed)
        if self._device.type != "cuda":
            return [first]
        for _ in range(SETTLING):
            last = observe(call, workload, train=train, seed=seed)
        return [first, last]

    def _build(self, size: str) -> Workload:
        return built(self._case, size, device=self._device, seed=self._request.seed)

    def _stepping(self, workload: Workload) -> Step:
        return Step(workload, train=self._case.train, seed=self._request.seed)

    def _first_call(self, call: Callable[..., Any]) -> float:
        results = self._results(call)
        pairs = zip(self._outputs, results, strict=True)
        return max(relative(got, wanted) for wanted, got in pairs)

    def _results(self, call: Callable[..., Any]) -> list[torch.Tensor]:
        """Return a step's outputs, and in training all gradients in one."""
        step, workload = self._step, self._workload
        assert step is not None
        assert workload is not None
        torch.manual_seed(self._request.seed)
        output = step(call)
        synchronize(self._device)
        found = [x.detach() for x in pytree.tree_leaves(output) if _floating(x)]
        gradients = [p.grad.flatten() for p in workload.model.parameters() if p.grad is not None]
        return [*found, *([torch.cat(gradients)] if gradients else [])]

    def _forget(self) -> None:
        self._workload = self._step = None
        self._calls.clear()
        self._outputs = []
        torch._dynamo.reset()  # noqa: SLF001
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of what is wanted."""
    # In float64: squares of what bfloat16 holds exceed float32.
    norm = functools.partial(torch.linalg.vector_norm, dtype=torch.float64)
    with torch.no_grad():
        return float(norm(got.float() - wanted.float()) / norm(wanted.float()).clamp_min(1e-30))


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _allocated(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)
