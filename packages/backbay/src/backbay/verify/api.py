"""Verifies backends on one workload: checks what is asked for, makes the truth, tries each."""

import contextlib
import datetime as dt
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backbay.dependencies import check_installed
from backbay.errors import BackendLoadError, InputError, WorkloadInvalid
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.target import parse
from backbay.reporting import machine
from backbay.session import NoReply, Refused
from backbay.verify.backend import BackendVerification, Course, Tell
from backbay.verify.record import BackendRecord, Limits, Report, Settings
from backbay.verify.requests import (
    SERVICE,
    NothingToTrain,
    Prepare,
    Prepared,
    VerifySession,
)
from backbay.verify.wording import summary
from backbay.workloads.reference import DEFAULT, check
from backbay.workloads.setup import (
    Mode,
    WorkloadSetup,
    check_device,
    check_dtype,
    placed,
)

if TYPE_CHECKING:
    from backbay.proof import Workload

DEFAULT_BACKEND = "inductor"

_IN_PROCESS = "the model object was verified in this process: a crash or a hang would have ended it"


def run(
    workload: "str | Workload" = DEFAULT,
    *,
    backends: str | Sequence[str] | Mapping[str, str | CompilerFn] = (DEFAULT_BACKEND,),
    train: bool | None = None,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    seed: int = 0,
    steps: int = 3,
    batches: Sequence[int] | None = None,
    limits: Limits | None = None,
    registry: Registry = default_registry,
    tell: Tell = lambda _workload, _backend, _text: None,
) -> Report:
    """Prove backends right or wrong on a model, and say where it begins to be wrong.

    Args:
        workload: a reference (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``), compiled in child processes; or a `Workload` object, compiled in
            this process.
        backends: registered names, ``module:attribute`` or ``file.py:attribute``; for a `Workload`
            object also a mapping of names to compiler functions or registered names.
        train: in training mode with gradients, or in eval mode without; both if not given.
        dtype: ``float32``, ``bfloat16`` or ``float16``; a `Workload` object keeps the one that it
            has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            stays where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        seed: of parameters, inputs and everything random.
        steps: of training.
        batches: further batch sizes that are run through what is compiled; default: two.
        limits: how long things may take.
        registry: where names are looked up.
        tell: called with workload, backend and what is going on.

    Raises:
        InputError: what was asked for does not exist or cannot run here; nothing was compiled.
    """
    check_installed("verify")
    given = None if isinstance(workload, str) else workload
    if given is not None:
        device, dtype = placed(given)
    device = device or registry.environment.default_device
    check_device(device, registry)
    name = workload if isinstance(workload, str) else _name(workload)
    if given is None:
        check(name, size)
        check_dtype(dtype)
    _check_numbers(steps, batches)
    wanted = [backends] if isinstance(backends, str) else list(dict.fromkeys(backends))
    compilers = backends if isinstance(backends, Mapping) else {}
    specs = _specs(registry, wanted, compilers, device, same_process=given is not None)
    modes: tuple[Mode, ...] = ("infer", "train") if train is None else (_MODES[train],)
    settings = Settings(
        workload=name,
        backends=tuple(wanted),
        modes=modes,
        dtype=dtype,
        device=device,
        seed=seed,
        steps=steps,
        batches=None if batches is None else tuple(batches),
    )
    with tempfile.TemporaryDirectory(prefix="backbay-verify-") as folder:
        environment = _caches(Path(folder))
        open_session, left = _sessions(given, compilers, registry, environment)
        verification = _Verification(
            settings,
            size=size,
            folder=folder,
            open_session=open_session,
            limits=limits or Limits(),
            tell=tell,
        )
        with left:
            results = verification.run()
    return _report(verification, results, specs, registry, here=given is not None)


_MODES: dict[bool, Mode] = {False: "infer", True: "train"}


class _Verification:
    """The references first, then one backend after the other."""

    def __init__(
        self,
        settings: Settings,
        *,
        size: str | None,
        folder: str,
        open_session: Callable[[], VerifySession],
        limits: Limits,
        tell: Tell,
    ) -> None:
        self.settings = settings
        self._size = size
        self._folder = folder
        self._open_session = open_session
        self._limits = limits
        self._tell = tell
        self.notes: list[str] = []
        self.device_name = settings.device
        self.workload = settings.workload

    def run(self) -> list[BackendRecord]:
        with self._open_session() as session:
            found = [self._course(session, mode) for mode in self.settings.modes]
        courses = [x for x in found if x is not None]
        if not courses:
            raise InputError(
                f"workload {self.workload!r} has nothing to train, and nothing else to do"
            )
        return [self._record(name, courses) for name in self.settings.backends]

    def _record(self, name: str, courses: Sequence[Course]) -> BackendRecord:
        verification = BackendVerification(
            backend=name,
            courses=courses,
            steps=self.settings.steps,
            open_session=self._open_session,
            limits=self._limits,
            tell=self._tell,
        )
        return verification.run()

    def _course(self, session: VerifySession, mode: Mode) -> Course | None:
        """Prepare a mode; None where there is nothing to train, and nobody asked for it."""
        settings = self.settings
        setup = WorkloadSetup(
            workload=settings.workload,
            size=self._size,
            mode=mode,
            dtype=settings.dtype,
            device=settings.device,
            seed=settings.seed,
        )
        self._tell(settings.workload, "eager", f"{mode}: eager and float64")
        request = Prepare(
            setup=setup, folder=self._folder, steps=settings.steps, batches=settings.batches
        )
        try:
            reply = session.ask(request, timeout_s=self._limits.check_s)
        except NoReply as error:
            if isinstance(error, Refused) and error.input_error:
                raise WorkloadInvalid(error.reason, error.detail) from None
            return self._unproven(setup, error.reason)
        if isinstance(reply, Prepared):
            self._note(mode, reply)
            return Course(setup=setup, folder=self._folder, prepared=reply)
        assert isinstance(reply, NothingToTrain)
        if len(settings.modes) == 1:
            return self._unproven(setup, reply.reason)
        self.notes.append(reply.reason)
        return None

    def _unproven(self, setup: WorkloadSetup, why: str) -> Course:
        reason = f"eager gives nothing to compare with: {why}"
        return Course(setup=setup, folder=self._folder, prepared=None, reason=reason)

    def _note(self, mode: Mode, prepared: Prepared) -> None:
        self.workload, self.device_name = prepared.workload, prepared.device_name
        self.notes += (f"{mode}: {note}" for note in prepared.notes)


def _name(workload: "Workload") -> str:
    return workload.name or type(workload.model).__name__


def _check_numbers(steps: int, batches: Sequence[int] | None) -> None:
    if steps < 1:
        raise InputError(f"{steps} steps of training: it takes at least 1")
    wrong = [x for x in batches or () if x < 1]
    if wrong:
        raise InputError(f"no batch has {wrong[0]} rows: give sizes of at least 1")


def _specs(
    registry: Registry,
    names: Sequence[str],
    compilers: Mapping[str, str | CompilerFn],
    device: str,
    *,
    same_process: bool,
) -> list[BackendSpec]:
    """Check that every backend exists and runs here, and give what is known of them."""
    if not names:
        raise InputError("no backend was named: give at least one")
    if compilers and not same_process:
        raise InputError(
            "compiler functions cannot travel to child processes: verify a Workload object"
        )
    asked = [compilers.get(name, name) for name in names]
    found = (_spec(registry, x, device) for x in asked if isinstance(x, str))
    specs = [x for x in found if x is not None]
    for spec in specs:
        if not same_process and spec.origin.kind == "process":
            raise InputError(
                f"backend {spec.name!r} is registered in this process, and others verify it: "
                "name it FILE.py:FUNCTION, or verify a Workload object"
            )
    return specs


def _spec(registry: Registry, name: str, device: str) -> BackendSpec | None:
    target = parse(name)
    if target is None:
        return registry.require(name, device.partition(":")[0])
    try:
        target.check()
    except LookupError as error:
        raise BackendLoadError(f"backend {name!r}: {error}") from error
    return None


def _caches(folder: Path) -> dict[str, str]:
    """Point compilers at caches of their own: nothing may come from an earlier run."""
    cache = folder / "cache"
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}


def _sessions(
    given: "Workload | None",
    compilers: Mapping[str, str | CompilerFn],
    registry: Registry,
    environment: Mapping[str, str],
) -> tuple[Callable[[], VerifySession], contextlib.AbstractContextManager[None]]:
    """Return what opens a session, and what must be around all of them."""
    if given is None:
        return (lambda: SERVICE.session(environment)), contextlib.nullcontext()
    from backbay.verify.handler import VerifyHandler  # noqa: PLC0415 (torch is loaded: a model is)

    handler = VerifyHandler(given, compilers, registry)
    return (lambda: SERVICE.here(handler, environment)), _forgotten()


@contextlib.contextmanager
def _forgotten() -> Iterator[None]:
    """Forget afterwards what this process compiled."""
    import torch  # noqa: PLC0415 (there is a model)

    try:
        yield
    finally:
        torch.compiler.reset()


def _report(
    verification: _Verification,
    results: Sequence[BackendRecord],
    specs: Sequence[BackendSpec],
    registry: Registry,
    *,
    here: bool,
) -> Report:
    return Report(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine(verification.device_name),
        versions=machine.versions(registry.environment, specs),
        settings=verification.settings,
        sentence=summary(results, verification.workload),
        results=tuple(results),
        notes=(*([_IN_PROCESS] if here else ()), *dict.fromkeys(verification.notes)),
    )
