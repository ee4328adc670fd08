"""Answers a race's requests: in a child process, or in this one for a model object."""

import contextlib
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from backbay.messages import one_line
from backbay.proof import Golden, Step, Workload, digest, make_golden, unchanged
from backbay.race.requests import (
    Load,
    Loaded,
    Open,
    Opened,
    Reference,
    Referenced,
    Reply,
    Request,
    Tried,
    Try,
)
from backbay.race.trial import EAGER, Trial, compiled
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.timing import clock
from backbay.timing.device import device_name, synchronize
from backbay.timing.measure import Block, Timed
from backbay.timing.memory import peak_bytes, reset_peak
from backbay.workloads.setup import WorkloadSetup, not_alike

_RANDOM = (
    "the model draws random numbers: it was proven with Inductor's fallback_random, which draws "
    "what eager draws, and timed without it"
)
_RECOMPILE_LIMIT = 256


class RaceHandler:
    """One workload and the backends that have been compiled for it."""

    requests: ClassVar[Any] = Request

    def __init__(
        self,
        workload: Workload | None = None,
        backends: Mapping[str, str | CompilerFn] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._given = workload
        self._backends = backends or {}
        self._registry = registry
        self._built: tuple[WorkloadSetup, Workload] | None = None
        self._calls: dict[str, Callable[..., Any]] = {}
        self._step: Step | None = None
        self._device = torch.device("cpu")

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case Load():
                return Loaded(workload=self._workload(request.setup).name)
            case Reference():
                return self._reference(request)
            case Try():
                return self._trial(request)
            case Open():
                with _room_for_all():
                    return self._open(request)
            case Block():
                with _room_for_all():
                    return self._block(request)

    def _workload(self, setup: WorkloadSetup) -> Workload:
        self._device = torch.device(setup.device)
        if self._given is not None:
            return self._given
        if self._built is not None and self._built[0] == setup:
            return self._built[1]
        from backbay.workloads.loading import build  # noqa: PLC0415 (a given model needs none of it)

        workload = build(setup)
        self._built = (setup, workload)
        return workload

    def _reference(self, request: Reference) -> Referenced:
        setup = request.setup
        workload = self._workload(setup)
        fingerprint = digest(workload)
        eager_peak = self._eager_peak(workload, setup)  # first: a golden keeps its tensors
        golden = make_golden(workload, train=setup.train, seed=setup.seed)
        golden.save(request.golden)
        return Referenced(
            workload=workload.name,
            digest=fingerprint,
            peak_bytes=eager_peak,
            notes=(*golden.notes, *([_RANDOM] if golden.draws_random else [])),
            device_name=device_name(self._device),
        )

    def _eager_peak(self, workload: Workload, setup: WorkloadSetup) -> int | None:
        step = Step(workload, train=setup.train, seed=setup.seed)
        with unchanged(step):
            step(workload.model)
            reset_peak(self._device)
            step(workload.model)
            synchronize(self._device)
            return peak_bytes(self._device)

    def _trial(self, request: Try) -> Tried:
        setup = request.setup
        workload = self._same_workload(setup, request.digest)
        try:
            trial = Trial(
                workload=workload,
                device=self._device,
                train=setup.train,
                seed=setup.seed,
                compiler=self._compiler(request.backend),
            )
            return trial.run(Golden.load(request.golden))
        except Exception as error:  # noqa: BLE001 (a backend may raise anything)
            traceback.print_exc()
            return Tried(status="failed", reason=one_line(error))

    def _open(self, request: Open) -> Opened:
        setup = request.setup
        workload = self._same_workload(setup, request.digest)
        self._step = Step(workload, train=setup.train, seed=setup.seed)
        step_s: dict[str, float] = {}
        failed: dict[str, str] = {}
        for backend in request.backends:
            try:
                self._calls[backend] = compiled(workload.model, self._compiler(backend))
                self._seconds(backend, calls=2)
                step_s[backend] = self._seconds(backend, calls=1)
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                failed[backend] = one_line(error)
        return Opened(step_s=step_s, failed=failed)

    def _block(self, request: Block) -> Timed:
        assert self._step is not None, "blocks are timed after Open"
        step, call = self._step, self._calls[request.backend]
        taken = clock.block(
            lambda: step(call),
            warmups=request.warmups,
            calls=request.calls,
            device=self._device,
        )
        return Timed(seconds=taken)

    def _seconds(self, backend: str, calls: int) -> float:
        assert self._step is not None, "there is a step after Open"
        step, call = self._step, self._calls[backend]
        return clock.seconds(lambda: step(call), calls, self._device)

    def _compiler(self, backend: str) -> str | CompilerFn | None:
        if backend in self._backends:
            return self._backends[backend]
        return None if backend == EAGER else self._registry.resolve(backend)

    def _same_workload(self, setup: WorkloadSetup, fingerprint: str) -> Workload:
        workload = self._workload(setup)
        if digest(workload) != fingerprint:
            raise not_alike(workload.name)
        return workload


def _room_for_all() -> contextlib.AbstractContextManager[None]:
    """Let every backend compile the same code: none may be refused for the others' entries."""
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(  # noqa: SLF001
        recompile_limit=_RECOMPILE_LIMIT
    )
    return patched
