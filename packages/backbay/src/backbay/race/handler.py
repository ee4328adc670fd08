"""Runs backends for a race: in a child process, or in this one for a model object."""

import contextlib
import importlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from backbay.causes import one_line
from backbay.decisions import Arm
from backbay.judge import process_state
from backbay.judge.runs import Runs
from backbay.proof import Workload, digest, evidence
from backbay.proof.bank import Inputs
from backbay.proof.sequence import mixed
from backbay.proof.state import State
from backbay.race.caches import variables
from backbay.race.compiler import Compiler, compiler_of, problems
from backbay.race.rebuilding import likeness
from backbay.race.requests import (
    ArmSetup,
    Call,
    CallRow,
    Capture,
    Captured,
    Check,
    Checked,
    Done,
    Finish,
    Finished,
    GetReady,
    Hand,
    Load,
    Loaded,
    Open,
    Opened,
    Renew,
    Reply,
    Request,
    Try,
    WarmUp,
    Watch,
    Watched,
)
from backbay.race.ring import Ring, fitting
from backbay.race.trial import Trial
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.timing import clock, kernels
from backbay.timing.measure import Block, Timed
from backbay.timing.rounds import WARMUPS
from backbay.workloads.setup import WorkloadSetup, not_alike

_RECOMPILE_LIMIT = 256
_FEWEST_CALLS, _MOST_CALLS = 2, 6
"""Of a new arm, the first one not counted, until it is timed."""
_FIRST_CALLS_S = 0.5
"""What these may take together, before there are no more than the fewest."""


class RaceHandler:
    """One workload and the arms that have been compiled for it."""

    requests: ClassVar[Any] = Request

    def __init__(
        self,
        workload: Workload | None = None,
        backends: Mapping[str, str | CompilerFn] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._given = None if workload is None else mixed(workload)
        self._backends = dict(backends or {})
        self._registry = registry
        self._built: tuple[WorkloadSetup, Workload] | None = None
        self._trial: Trial | None = None
        self._calls: dict[str, Callable[..., Any]] = {}
        self._runs: Runs | None = None
        self._sets: list[Inputs] = []
        self._varies: list[bool] = []
        self._ring: Ring | None = None
        self._renewals = 0
        self._device = torch.device("cpu")

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case Load():
                return self._loaded(request)
            case GetReady():
                return self._got_ready(request)
            case Try() | Finish() | Capture():
                return self._of_trial(request)
            case Hand():
                (self._trial or self._ready).hand(Path(request.path), request.picked)
                return Done()
            case Renew():
                return self._renew(request)
        with _room_for_all():
            return self._compiled_answer(request)

    def _of_trial(self, request: Try | Finish | Capture) -> Done | Finished | Captured:
        if isinstance(request, Try):
            self._trial = self._tried(request)
            return Done()
        assert self._trial is not None, "a trial is finished after Try"
        if isinstance(request, Capture):
            return self._trial.captured()
        return self._trial.finished()

    def _compiled_answer(
        self, request: Check | WarmUp | Call | CallRow | Open | Watch | Block
    ) -> Reply:
        match request:
            case Check():
                return self._checked(request)
            case WarmUp():
                device = torch.device(request.setup.device)
                self._compiler(request.arm).warm_up(device, train=request.setup.train)
                return Done()
            case Call() | CallRow():
                self._call(request)
                return Done()
            case Open():
                return self._open(request)
            case Watch():
                step, call = self._ready.step, self._calls[request.arm]
                return Watched(work=kernels.gpu_work(lambda: step(call), self._device))
            case Block():
                return self._block(request)

    @property
    def _ready(self) -> Runs:
        assert self._runs is not None, "backends are called after Open"
        return self._runs

    def _loaded(self, request: Load) -> Loaded:
        workload = self._workload(request.setup)
        if request.backends is None:
            return Loaded(workload=workload.name)
        for backend in request.backends:
            self._compiler(ArmSetup(arm=Arm(backend=backend)))
        return Loaded(workload=workload.name, likeness=likeness(workload))

    def _got_ready(self, request: GetReady) -> Done:
        importlib.import_module("torch._inductor.compile_fx")  # else it is when something compiles
        self._workload(request.setup)
        return Done()

    def _checked(self, request: Check) -> Checked:
        found = list[str]()
        for setup in request.arms:
            # What can't be loaded is a row that says why.
            with contextlib.suppress(Exception):
                wrong = problems(setup, self._backends, self._registry)
                found += [f"arm {setup.name!r}: {x}" for x in wrong]
        return Checked(problems=tuple(found))

    def _workload(self, setup: WorkloadSetup) -> Workload:
        self._device = torch.device(setup.device)
        if self._given is not None:
            return self._given
        if self._built is not None and self._built[0] == setup:
            return self._built[1]
        from backbay.workloads.loading import build  # noqa: PLC0415 (a given model needs none of it)

        workload = mixed(build(setup))
        self._built = (setup, workload)
        return workload

    def _tried(self, request: Try) -> Trial:
        setup = request.setup
        workload = self._same_workload(setup, request.digest)
        self._runs = None
        before = process_state.state()  # what a backend changes, it may change when it is imported
        compiler = self._compiler(request.arm)
        assert compiler.backend is not None, "eager is what others are compared with"
        return Trial(
            workload,
            self._device,
            compiler,
            request.proving,
            before,
            train=setup.train,
            seed=setup.seed,
        )

    def _call(self, request: Call | CallRow) -> None:
        if isinstance(request, CallRow):
            assert self._trial is not None, "calls in a row come after Try"
            sets = [None if x is None else self._read(x) for x in request.inputs]
            self._trial.call_in_a_row(sets)
            return
        inputs = None if request.inputs is None else self._read(request.inputs)
        if self._trial is not None:
            self._trial.call(inputs, fresh=request.fresh)
            return
        self._ready.call(self._calls[request.arm], inputs, fresh=request.fresh)

    def _open(self, request: Open) -> Opened:
        setup = request.setup
        if self._runs is None:
            workload = self._same_workload(setup, request.digest)
            self._trial = None
            self._runs = Runs(
                workload, self._device, train=setup.train, seed=setup.seed, optimizes=True
            )
            own = tuple(x.detach().clone() for _, x in self._runs.step.inputs)
            others = [self._read(x) for x in request.inputs]
            # Where the proof was made on smaller inputs, they say no more than what may vary.
            whole = [x for x in others if [y.shape for y in x] == [y.shape for y in own]]
            self._sets = [own, *whole]
            self._varies = _differing(own, others)
            self._ring = None
        model = self._runs.step.workload.model
        if request.cache:
            os.environ |= variables(request.cache)
        step_s: dict[str, float] = {}
        compile_s: dict[str, float] = {}
        failed: dict[str, str] = {}
        for arm in request.arms:
            try:
                compiler = self._compiler(arm)
                if request.warm:
                    compiler.warm_up(self._device, train=setup.train)
                self._calls[arm.name] = compiler.applied(model)
                first_s = self._seconds(arm.name, calls=1)
                step_s[arm.name] = self._step_s(arm.name)
                if request.warm:
                    compile_s[arm.name] = max(first_s - step_s[arm.name], 0.0)
            except Exception as error:  # noqa: BLE001 (a backend may raise anything)
                traceback.print_exc()
                failed[arm.name] = one_line(error)
        most = fitting(self._runs.step) - WARMUPS
        return Opened(step_s=step_s, compile_s=compile_s, failed=failed, most_calls=max(1, most))

    def _renew(self, request: Renew) -> Done:
        if self._ring is None or len(self._ring.steps) < request.calls:
            self._ring = Ring(self._ready.step, self._varies, request.calls)
        self._renewals += 1
        last = self._sets[request.inputs % len(self._sets)]
        self._ring.renew(self._renewals, last, used=request.calls)
        return Done()

    def _block(self, request: Block) -> Timed:
        assert self._ring is not None, "blocks are timed after Renew"
        start = clock.now()
        runs, number = self._ready, request.warmups + request.calls
        last = self._ring.steps[number - 1]
        before = State(last) if request.sample else None
        calls = self._ring.calls(self._calls[request.backend], number, request.part)
        taken, output = clock.block_of(
            calls, warmups=request.warmups, device=self._device, waits=request.waits
        )
        if before is not None:
            runs.hold_last(output, last, before)
        return Timed(seconds=taken, whole_s=clock.now() - start)

    def _step_s(self, arm: str) -> float:
        """Return how long a step takes, by the fastest of some calls.

        One of the first may record a CUDA graph, or time the arm itself. Taken for a step, it
        would leave a block few calls, each of which found the device idle.
        """
        taken = [self._seconds(arm, calls=1) for _ in range(_FEWEST_CALLS)]
        while len(taken) < _MOST_CALLS and sum(taken) < _FIRST_CALLS_S:
            taken.append(self._seconds(arm, calls=1))
        return min(taken)

    def _seconds(self, arm: str, calls: int) -> float:
        step, call = self._ready.step, self._calls[arm]
        return clock.seconds(lambda: step(call), calls, self._device)

    def _read(self, path: str) -> Inputs:
        found = evidence.read_tensors(path)
        return tuple(found[str(i)].to(self._device) for i in range(len(found)))

    def _compiler(self, setup: ArmSetup) -> Compiler:
        return compiler_of(setup, self._backends, self._registry)

    def _same_workload(self, setup: WorkloadSetup, fingerprint: str) -> Workload:
        workload = self._workload(setup)
        if digest(workload) != fingerprint:
            raise not_alike(workload.name)
        return workload


def _differing(own: Inputs, others: Sequence[Inputs]) -> list[bool]:
    """Return of each input whether it may have other values: further sets of it differ."""
    if len(others) < 2:  # noqa: PLR2004 (one by itself may be smaller, and no more)
        return [False] * len(own)
    return [not torch.equal(a, b) for a, b in zip(others[0], others[1], strict=True)]


def _room_for_all() -> contextlib.AbstractContextManager[None]:
    """Let every backend compile the same code: none may be refused for the others' entries."""
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(  # noqa: SLF001
        recompile_limit=_RECOMPILE_LIMIT
    )
    return patched
