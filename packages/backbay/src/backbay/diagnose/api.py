"""Diagnoses one workload: explains it, looks inside of Inductor, then tries what may help."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from backbay.decisions import Arm
from backbay.dependencies import check_installed
from backbay.diagnose.assembling import assembled
from backbay.diagnose.ranking import known, measured
from backbay.diagnose.record import Diagnosis, Settings, TrialRecord
from backbay.diagnose.remedies import Remedies
from backbay.diagnose.remedy import Remedy
from backbay.diagnose.requests import (
    SERVICE,
    DiagnoseSession,
    Explain,
    Explained,
    Look,
    Looked,
    Tried,
    Try,
)
from backbay.errors import InputError, WorkloadInvalid
from backbay.explain import Explanation, FindingRecord
from backbay.explain.findings import finding
from backbay.race.caches import variables
from backbay.race.requests import ArmSetup
from backbay.ranges import check_seconds, check_seed
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.names import BackendName
from backbay.registry.target import parse
from backbay.reporting import machine
from backbay.reporting.wording import seconds
from backbay.session import NoReply, Refused
from backbay.workloads.reference import DEFAULT
from backbay.workloads.setup import WorkloadSetup, checked_setup

if TYPE_CHECKING:
    from backbay.proof import Workload

INDUCTOR: Final = "inductor"
_GIVEN = "the compiler function"


class Tell(Protocol):
    """Shows what is going on with a workload and a backend."""

    def __call__(self, workload: str, backend: str, text: str, /) -> None:
        """Show it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    budget_s: float = 60.0
    """All that is tried: what does not fit any more is left out, and the report says so."""
    timing_s: float = 3.0
    """The timing of a step, and of both sides of what is tried."""
    request_s: float = 600.0
    """One compilation with what is measured of it."""


def run(
    workload: "str | Workload" = DEFAULT,
    *,
    backend: BackendName | CompilerFn = INDUCTOR,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    train: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    registry: Registry = default_registry,
    tell: Tell = lambda _workload, _backend, _text: None,
) -> Diagnosis:
    """Return what makes a model slow under torch.compile, what to change, and what that gains.

    The model is explained, compiled and profiled in a child process; then each remedy that Backbay
    can carry out is compiled, proven right and timed beside what there was. What costs most comes
    first.

    Args:
        workload: a reference (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``); or a `Workload` object, which is compiled in this process.
        backend: a registered name, ``module:attribute`` or ``file.py:attribute``; for a `Workload`
            object also a compiler function.
        mode: as in torch.compile.
        options: as in torch.compile.
        dynamic: as in torch.compile.
        fullgraph: as in torch.compile.
        train: a step is forward and backward; else forward without gradients.
        dtype: ``float32``, ``bfloat16`` or ``float16``; a `Workload` object keeps the one that it
            has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            stays where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        seed: of parameters, inputs and everything random.
        limits: how long things may take.
        registry: where names are looked up.
        tell: called with workload, backend and what is going on.

    Raises:
        InputError: what was asked for does not exist or cannot run here; nothing was compiled.
    """
    check_installed("diagnose")
    limits = limits or Limits()
    check_seed(seed)
    for name in ("timing_s", "request_s"):
        check_seconds(f"limits.{name}", getattr(limits, name))
    setup = checked_setup(
        workload,
        mode="train" if train else "infer",
        dtype=dtype,
        device=device,
        size=size,
        seed=seed,
        registry=registry,
    )
    given = None if isinstance(workload, str) else workload
    specs = _specs(backend, setup.device, registry, same_process=given is not None)
    name = backend if isinstance(backend, str) else _GIVEN
    arm = ArmSetup(
        arm=Arm(backend=name, mode=mode, options=dict(options or {})),
        dynamic=dynamic,
        fullgraph=fullgraph,
    )
    backends = {} if isinstance(backend, str) else {name: backend}
    with (
        tempfile.TemporaryDirectory(prefix="backbay-diagnose-") as folder,
        _session(given, backends, registry, folder) as session,
    ):
        course = _Course(
            session=session, setup=setup, arm=arm, registry=registry, limits=limits, tell=tell
        )
        course.run()
    explanation = course.explanation
    assert explanation is not None, "it ran"
    return assembled(
        explanation,
        course.looked,
        findings=course.findings,
        trials=course.trials,
        own_calls=course.own_calls,
        versions=machine.versions(registry.environment, specs),
        settings=Settings(
            workload=explanation.settings.workload,
            arm=str(arm.arm),
            dynamic=dynamic,
            fullgraph=fullgraph,
            mode=setup.mode,
            dtype=setup.dtype,
            device=setup.device,
            seed=seed,
        ),
        notes=course.notes,
    )


@dataclass(kw_only=True)
class _Course:
    """One diagnosis, from the explanation to what was tried."""

    session: DiagnoseSession
    setup: WorkloadSetup
    arm: ArmSetup
    registry: Registry
    limits: Limits
    tell: Tell
    explanation: Explanation | None = None
    own_calls: int = 0
    looked: Looked | None = None
    findings: list[FindingRecord] = field(default_factory=list)
    trials: dict[int, list[TrialRecord]] = field(default_factory=dict)
    """By position of the finding."""
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Explain, look, try.

        Raises:
            InputError: the workload can't be built, or the backend can't be configured so.
        """
        self.explanation = explanation = self._explained()
        self.findings += known(explanation)
        if explanation.problem is not None:
            return
        try:
            self._tell("compiling, and looking inside")
            looked = self._ask(Look(setup=self.setup, arm=self.arm, timing_s=self.limits.timing_s))
        except NoReply as error:
            if isinstance(error, Refused) and error.input_error:
                raise InputError(error.reason) from None
            self.notes.append(f"nothing was measured: {error.reason}")
            if error.status in {"failed", "crashed"}:
                self.findings.append(finding("BB602", error.reason, ""))
            return
        assert isinstance(looked, Looked)
        self.looked = looked
        self.notes += looked.inside.notes
        self.findings += measured(looked)
        codes = ", ".join(dict.fromkeys(x.code for x in self.findings)) or "nothing"
        self._tell(f"found {codes}")
        self._try_all(explanation, looked.inside.compile_s)

    def _explained(self) -> Explanation:
        self._tell("explaining")
        arm = self.arm.arm
        # Of Inductor, Dynamo's part is explained without it: inside of it is looked later.
        backend = None if arm.backend == INDUCTOR else arm.backend
        try:
            reply = self._ask(
                Explain(
                    setup=self.setup,
                    backend=backend,
                    mode=arm.mode if backend else None,
                    options=arm.options if backend else {},
                    dynamic=self.arm.dynamic,
                    fullgraph=self.arm.fullgraph,
                )
            )
        except Refused as error:
            if error.input_error:
                raise WorkloadInvalid(error.reason, error.detail) from None
            raise InputError(f"the workload can't be explained: {error.reason}") from error
        except NoReply as error:
            raise InputError(f"the workload can't be explained: {error.reason}") from error
        assert isinstance(reply, Explained)
        self.own_calls = reply.own_calls
        return reply.explanation

    def _try_all(self, explanation: Explanation, compile_s: float) -> None:
        remedies = Remedies(
            explanation=explanation,
            arm=self.arm,
            device=self.setup.device,
            registry=self.registry,
        )
        end = time.monotonic() + self.limits.budget_s
        known: dict[str, TrialRecord] = {}
        for number, found in enumerate(self.findings):
            trials = self.trials.setdefault(number, [])
            for remedy in remedies.of(found):
                if remedy.name not in known:
                    known[remedy.name] = self._tried(remedy, found, end, compile_s)
                trials.append(known[remedy.name])

    def _tried(
        self, remedy: Remedy, found: FindingRecord, end: float, compile_s: float
    ) -> TrialRecord:
        why = remedy.unfit
        # What is compiled again is compiled in both ways, once more than it would be.
        expected_s = self.limits.timing_s + compile_s * (3 if remedy.calls_again else 1)
        left_s = end - time.monotonic()
        if not why and expected_s > left_s:
            why = (
                f"it takes about {seconds(expected_s)}, and {seconds(max(left_s, 0.0))} were left: "
                "give it a larger --budget"
            )
        if why:
            return TrialRecord(remedy=remedy.name, status="not_tried", sentence=why)
        self._tell(f"{found.code}: trying {remedy.name}")
        try:
            reply = self._ask(
                Try(setup=self.setup, arm=self.arm, remedy=remedy, timing_s=self.limits.timing_s)
            )
        except NoReply as error:
            return TrialRecord(remedy=remedy.name, status="failed", sentence=error.reason)
        assert isinstance(reply, Tried)
        return reply.trial

    def _ask(self, request: Explain | Look | Try) -> Explained | Looked | Tried:
        return self.session.ask(request, timeout_s=self.limits.request_s)

    def _tell(self, text: str) -> None:
        self.tell(self.setup.workload, str(self.arm.arm), text)


def _specs(
    backend: BackendName | CompilerFn, device: str, registry: Registry, *, same_process: bool
) -> list[BackendSpec]:
    if not isinstance(backend, str):
        if same_process:
            return []
        raise InputError(
            "a compiler function can't travel to a child process: diagnose a Workload object, or "
            "name it FILE.py:FUNCTION"
        )
    target = parse(backend)
    if target is None:
        return [registry.require(backend, device.partition(":")[0])]
    try:
        target.check()
    except LookupError as error:
        raise InputError(f"backend {backend!r}: {error}") from error
    return []


@contextmanager
def _session(
    given: "Workload | None",
    backends: Mapping[str, CompilerFn],
    registry: Registry,
    folder: str,
) -> Iterator[DiagnoseSession]:
    environment = variables(str(Path(folder) / "cache"))
    if given is None:
        # Its process is ended, and removes no folder of its own.
        with SERVICE.session({**environment, "TMPDIR": folder}) as session:
            yield session
        return
    from backbay.diagnose.handler import DiagnoseHandler  # noqa: PLC0415 (torch is loaded)

    handler = DiagnoseHandler(given, backends, registry)
    try:
        with SERVICE.here(handler, environment) as session:
            yield session
    finally:
        import torch  # noqa: PLC0415 (there is a model)

        torch.compiler.reset()  # what was compiled for it is no longer wanted
