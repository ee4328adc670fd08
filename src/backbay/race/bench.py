"""Carries out a race's requests: in a child process, or in this one for a model object."""

import contextlib
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from backbay.errors import InputError
from backbay.proof import Golden, Step, Workload, digest, make_golden, unchanged
from backbay.race import clock, job
from backbay.race.memory import peak_bytes, reset_peak
from backbay.race.trial import EAGER, Trial, compiled, synchronize
from backbay.registry import CompilerFn, Registry, default_registry

_RANDOM = (
    "the model draws random numbers: it was proven with Inductor's fallback_random, which draws "
    "what eager draws, and timed without it"
)
_RECOMPILE_LIMIT = 256
_LONGEST_REASON = 400  # characters: a row of a table, not a log


class Bench:
    """One workload and the backends that have been compiled for it."""

    def __init__(
        self,
        workload: Workload | None = None,
        backends: Mapping[str, str | CompilerFn] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._given = workload
        self._backends = backends or {}
        self._registry = registry
        self._built: tuple[job.Setup, Workload] | None = None
        self._calls: dict[str, Callable[..., Any]] = {}
        self._step: Step | None = None
        self._device = torch.device("cpu")

    def answer(self, request: job.Request) -> job.Reply:
        """Carry out a request. Nothing is raised: what goes wrong is a reply."""
        try:
            return self._carry_out(request)
        except InputError as error:
            detail = "\n".join(getattr(error, "__notes__", ()))
            return job.Refused(reason=str(error), input_error=True, detail=detail)
        except Exception as error:  # noqa: BLE001 (whatever a model or a backend raises is a result)
            traceback.print_exc()
            return job.Refused(reason=one_line(error))

    def _carry_out(self, request: job.Request) -> job.Reply:
        match request:
            case job.Load():
                return job.Loaded(workload=self._workload(request.setup).name)
            case job.Reference():
                return self._reference(request)
            case job.Trial():
                return self._trial(request)
            case job.Open():
                with _room_for_all():
                    return self._open(request)
            case job.Block():
                with _room_for_all():
                    return self._block(request)

    def _workload(self, setup: job.Setup) -> Workload:
        self._device = torch.device(setup.device)
        if self._given is not None:
            return self._given
        if self._built is not None and self._built[0] == setup:
            return self._built[1]
        from backbay.race.workloads import load  # noqa: PLC0415 (a given model needs none of it)

        workload = load(
            setup.workload,
            seed=setup.seed,
            dtype=getattr(torch, setup.dtype),
            device=self._device,
            train=setup.train,
            size=setup.size,
        )
        self._built = (setup, workload)
        return workload

    def _reference(self, request: job.Reference) -> job.Referenced:
        setup = request.setup
        workload = self._workload(setup)
        fingerprint = digest(workload)
        eager_peak = self._eager_peak(workload, setup)  # first: a golden keeps its tensors
        golden = make_golden(workload, train=setup.train, seed=setup.seed)
        golden.save(request.golden)
        return job.Referenced(
            workload=workload.name,
            digest=fingerprint,
            peak_bytes=eager_peak,
            notes=(*golden.notes, *([_RANDOM] if golden.draws_random else [])),
            device_name=_device_name(self._device),
        )

    def _eager_peak(self, workload: Workload, setup: job.Setup) -> int | None:
        step = Step(workload, train=setup.train, seed=setup.seed)
        with unchanged(step):
            step(workload.model)
            reset_peak(self._device)
            step(workload.model)
            synchronize(self._device)
            return peak_bytes(self._device)

    def _trial(self, request: job.Trial) -> job.Tried:
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
            return job.Tried(status="failed", reason=one_line(error))

    def _open(self, request: job.Open) -> job.Opened:
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
        return job.Opened(step_s=step_s, failed=failed)

    def _block(self, request: job.Block) -> job.Timed:
        assert self._step is not None, "blocks are timed after Open"
        step, call = self._step, self._calls[request.backend]
        taken = clock.block(
            lambda: step(call),
            warmups=request.warmups,
            calls=request.calls,
            device=self._device,
        )
        return job.Timed(seconds=taken)

    def _seconds(self, backend: str, calls: int) -> float:
        assert self._step is not None, "there is a step after Open"
        step, call = self._step, self._calls[backend]
        return clock.seconds(lambda: step(call), calls, self._device)

    def _compiler(self, backend: str) -> str | CompilerFn | None:
        if backend in self._backends:
            return self._backends[backend]
        return None if backend == EAGER else self._registry.resolve(backend)

    def _same_workload(self, setup: job.Setup, fingerprint: str) -> Workload:
        workload = self._workload(setup)
        if digest(workload) != fingerprint:
            raise InputError(
                f"workload {workload.name!r} was not built alike twice: its parameters or inputs "
                "differ between processes. Draw all random numbers from torch's default generator."
            )
        return workload


def _room_for_all() -> contextlib.AbstractContextManager[None]:
    """Let every backend compile the same code: none may be refused for the others' entries."""
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(  # noqa: SLF001
        recompile_limit=_RECOMPILE_LIMIT
    )
    return patched


def one_line(error: BaseException) -> str:
    """Give an error's kind and the first line of its message, for a table.

    Dynamo wraps what a backend raises; what it raised is what a reader needs.
    """
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
