"""Answers a diagnosis's requests: in a child process, or in this one for a model object."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from backbay import explain
from backbay.diagnose.looking import could_be_tf32, dtype_of, look
from backbay.diagnose.remedy import Remedy
from backbay.diagnose.requests import Explain, Explained, Look, Looked, Reply, Request, Tried, Try
from backbay.diagnose.structure import channels_first, repeated_blocks
from backbay.diagnose.subject import AS_IT_IS, Subject, compiler_fn
from backbay.diagnose.trying import Truth, tried
from backbay.errors import InputError
from backbay.explain.watching import Watch
from backbay.proof import Workload
from backbay.race.compiler import Compiler, problems
from backbay.race.requests import ArmSetup
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.timing.device import device_name
from backbay.workloads.setup import WorkloadSetup

_OWN_CALLS = 2
"""Of an explanation: the first, and the same again."""


class DiagnoseHandler:
    """One workload, and what it was compiled to before any remedy."""

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
        self._before: Subject | None = None
        self._truth: Truth | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="backbay-diagnose-")
        self._watches = list[Watch]()
        """Of all sides since Dynamo was reset."""

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case Explain():
                return self._explained(request)
            case Look():
                return self._looked(request)
            case Try():
                return self._tried(request)

    def _explained(self, request: Explain) -> Explained:
        workload = self._workload(request.setup)
        given = self._backends.get(request.backend or "", request.backend)
        plain = all(not kwargs for _, kwargs in workload.further)
        explanation = explain.run(
            workload,
            backend=given,  # type: ignore[arg-type] # a name that somebody gave
            mode=request.mode,
            options=request.options or None,
            dynamic=request.dynamic,
            fullgraph=request.fullgraph,
            train=request.setup.train,
            seed=request.setup.seed,
            further_args=[x for x, _ in workload.further] if workload.further and plain else None,
            registry=self._registry,
        )
        self._before = None  # Dynamo was reset
        own = len(explanation.calls) if workload.further and plain else _OWN_CALLS
        return Explained(explanation=explanation, own_calls=own)

    def _looked(self, request: Look) -> Looked:
        wrong = problems(request.arm, self._backends, self._registry)
        if wrong:
            raise InputError("; ".join(wrong))
        subject = self._started(request.setup, request.arm)
        inside = look(subject, request.timing_s)
        model = subject.workload.model
        return Looked(
            inside=inside,
            device_name=device_name(subject.device),
            blocks=repeated_blocks(model),
            convolutions=channels_first(model),
            could_be_tf32=could_be_tf32(subject.device, dtype_of(subject)),
        )

    def _tried(self, request: Try) -> Tried:
        if self._before is None:
            self._started(request.setup, request.arm)
        before, truth, remedy = self._before, self._truth, request.remedy
        assert before is not None, "it was started"
        assert truth is not None, "likewise"
        arm = ArmSetup(
            arm=msgspec.structs.replace(request.arm.arm, **remedy.arm),
            dynamic=request.arm.dynamic if remedy.dynamic is None else remedy.dynamic,
            fullgraph=request.arm.fullgraph,
        )
        if remedy.calls_again:
            # What torch gave up, it would not compile for either side.
            torch.compiler.reset()
            self._watches.clear()
            before = self._subject(request.setup, request.arm, AS_IT_IS)
        after = self._subject(request.setup, arm, remedy)
        trial = tried(
            before, after, truth, calls_again=remedy.calls_again, timing_s=request.timing_s
        )
        return Tried(trial=trial)

    def _started(self, setup: WorkloadSetup, arm: ArmSetup) -> Subject:
        """Return the side without a remedy, after what a toolchain does once a process."""
        self._before = self._subject(setup, arm, AS_IT_IS)
        self._truth = self._truth or Truth(self._before)
        Compiler(backend=self._before.compiler_fn).warm_up(
            torch.device(setup.device), train=setup.train
        )
        return self._before

    def _subject(self, setup: WorkloadSetup, arm: ArmSetup, remedy: Remedy) -> Subject:
        made = Subject(
            workload=self._workload(setup),
            compiler_fn=compiler_fn(arm, self._backends, self._registry),
            arm=arm,
            remedy=remedy,
            train=setup.train,
            seed=setup.seed,
            folder=Path(tempfile.mkdtemp(dir=self._folder.name)),
            others=sum(len(x.graphs) for x in self._watches),
        )
        self._watches.append(made.watch)
        return made

    def _workload(self, setup: WorkloadSetup) -> Workload:
        if self._given is not None:
            return self._given
        if self._built is None or self._built[0] != setup:
            from backbay.workloads.loading import build  # noqa: PLC0415 (a given model needs none)

            self._built = setup, build(setup)
        return self._built[1]
