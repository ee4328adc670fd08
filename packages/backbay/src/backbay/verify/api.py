"""Verifies backends on one workload: checks what is asked for, makes the truth, tries each."""

import contextlib
import datetime as dt
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backbay.decisions import Arm
from backbay.dependencies import check_installed
from backbay.errors import BackendLoadError, InputError, Interrupted, WorkloadInvalid
from backbay.ranges import check_seconds, check_seed
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.names import BackendName
from backbay.registry.target import parse
from backbay.reporting import machine
from backbay.session import NoReply, Refused
from backbay.verify.backend import BackendVerification, Tell, Unproven
from backbay.verify.judging import Judge
from backbay.verify.record import BackendRecord, Limits, Report, Settings
from backbay.verify.requests import SERVICE, Check, Checked, Course, Prepared, VerifySession
from backbay.verify.wording import summary
from backbay.workloads.reference import DEFAULT
from backbay.workloads.setup import Mode, WorkloadSetup, checked_setup

if TYPE_CHECKING:
    from backbay.proof import Workload

DEFAULT_BACKEND: Final = "inductor"

_UNPROVEN = "eager gives nothing to compare with"
_IN_PROCESS = (
    "the model object was verified in this process: a crash or a hang would have ended it, and a "
    "backend that cheats is not contained"
)


def run(
    workload: "str | Workload" = DEFAULT,
    *,
    backends: BackendName | Sequence[BackendName] | Mapping[str, BackendName | CompilerFn] = (
        DEFAULT_BACKEND,
    ),
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
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
        mode: as torch.compile takes it, of every backend.
        options: likewise.
        dynamic: likewise.
        fullgraph: likewise.
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
        Interrupted: by Ctrl-C; it has the report of what had been verified.
    """
    check_installed("verify")
    modes: tuple[Mode, ...] = ("infer", "train") if train is None else (_MODES[train],)
    setup = checked_setup(
        workload,
        mode=modes[0],
        dtype=dtype,
        device=device,
        size=size,
        seed=seed,
        registry=registry,
    )
    limits = limits or Limits()
    _check_numbers(steps, batches, seed, limits)
    wanted = [backends] if isinstance(backends, str) else list(dict.fromkeys(backends))
    compilers = backends if isinstance(backends, Mapping) else {}
    given = None if isinstance(workload, str) else workload
    specs = _specs(registry, wanted, compilers, setup.device, same_process=given is not None)
    for name in wanted:
        registry.warn_if_experimental(compilers.get(name, name))
    arms = [Arm(backend=name, mode=mode, options=dict(options or {})) for name in wanted]
    settings = Settings(
        workload=setup.workload,
        backends=tuple(wanted),
        modes=modes,
        dtype=setup.dtype,
        device=setup.device,
        seed=seed,
        steps=steps,
        batches=None if batches is None else tuple(batches),
        compile_mode=mode,
        options=dict(options or {}),
        dynamic=dynamic,
        fullgraph=fullgraph,
    )
    results: list[BackendRecord] = []
    with tempfile.TemporaryDirectory(prefix="backbay-verify-") as folder:
        open_session = _sessions(given, compilers, registry, Path(folder))
        if mode or options:
            _check_arms(arms, open_session, limits.check_s)
        judge = Judge(folder=Path(folder), open_reference=open_session, timeout_s=limits.check_s)
        try:
            courses, notes = _courses(judge, setup, settings, folder, tell=tell)
            judge.rest()
            prepared = next((x for x in courses if isinstance(x, Prepared)), None)
            name = prepared.workload if prepared is not None else setup.workload
            verifications = (
                BackendVerification(
                    arm=arm,
                    workload=name,
                    courses=courses,
                    judge=judge,
                    steps=steps,
                    open_session=open_session,
                    limits=limits,
                    tell=tell,
                )
                for arm in arms
            )
            interruption = _verified(verifications, results)
        finally:
            judge.end()
            if given is not None:
                import torch  # noqa: PLC0415 (there is a model)

                torch.compiler.reset()  # what was compiled for it is no longer wanted
    device_name = prepared.device_name if prepared is not None else setup.device
    report = Report(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine(device_name),
        versions=machine.versions(registry.environment, specs),
        settings=settings,
        sentence=summary(results, name),
        results=tuple(results),
        notes=(*([_IN_PROCESS] if given is not None else ()), *dict.fromkeys(notes)),
        isolation="process" if given is None else "in_process",
        partial=interruption is not None,
    )
    if interruption is not None:
        raise Interrupted(report) from interruption
    return report


def _verified(
    verifications: Iterable[BackendVerification], results: list[BackendRecord]
) -> KeyboardInterrupt | None:
    """Verify one backend after the other, and return what interrupted that."""
    for one in verifications:
        try:
            results.append(one.run())
        except KeyboardInterrupt as stopped:
            results.append(one.record(interrupted=True))
            return stopped
    return None


_MODES: dict[bool, Mode] = {False: "infer", True: "train"}


def _check_numbers(steps: int, batches: Sequence[int] | None, seed: int, limits: Limits) -> None:
    check_seed(seed)
    check_seconds("limits.check_s", limits.check_s)
    check_seconds("limits.blame_s", limits.blame_s, none_at_all=True)
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
    """Check that every backend exists and runs here, and return what is known of them."""
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


def _check_arms(
    arms: Sequence[Arm], open_session: Callable[[], VerifySession], timeout_s: float
) -> None:
    """Check mode and options before anything is compiled.

    Raises:
        InputError: a backend does not take them.
    """
    with open_session() as session, contextlib.suppress(NoReply):  # the backend's own check tells
        checked = session.ask(Check(arms=tuple(arms)), timeout_s=timeout_s)
        assert isinstance(checked, Checked)
        if checked.problems:
            raise InputError("; ".join(checked.problems))


def _spec(registry: Registry, name: str, device: str) -> BackendSpec | None:
    target = parse(name)
    if target is None:
        return registry.require(name, device.partition(":")[0])
    try:
        target.check()
    except LookupError as error:
        raise BackendLoadError(f"backend {name!r}: {error}") from error
    return None


def _courses(
    judge: Judge,
    setup: WorkloadSetup,
    settings: Settings,
    folder: str,
    *,
    tell: Tell,
) -> tuple[list[Prepared | Unproven], list[str]]:
    """Prepare each mode, but one in which there is nothing to train, where others were asked for.

    Raises:
        WorkloadInvalid: the workload can't be built, or raises.
    """
    courses: list[Prepared | Unproven] = []
    notes: list[str] = []
    for mode in settings.modes:
        course = Course(
            setup=msgspec.structs.replace(setup, mode=mode),
            folder=folder,
            dynamic=settings.dynamic,
            fullgraph=settings.fullgraph,
        )
        tell(setup.workload, "eager", f"{mode}: eager and float64")
        try:
            reply = judge.prepare(course, settings.steps, settings.batches)
        except NoReply as error:
            if isinstance(error, Refused) and error.input_error:
                raise WorkloadInvalid(error.reason, error.detail) from None
            courses.append(Unproven(course, f"{_UNPROVEN}: {error.reason}"))
            continue
        if isinstance(reply, Prepared):
            courses.append(reply)
            notes += (f"{mode}: {note}" for note in reply.notes)
        elif len(settings.modes) == 1:
            courses.append(Unproven(course, f"{_UNPROVEN}: {reply.reason}"))
        else:
            notes.append(reply.reason)
    return courses, notes


def _sessions(
    given: "Workload | None",
    compilers: Mapping[str, str | CompilerFn],
    registry: Registry,
    folder: Path,
) -> Callable[[], VerifySession]:
    """Return what opens a session; caches are its own: nothing may come from an earlier run."""
    cache = folder / "cache"
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    if given is None:
        return lambda: SERVICE.session(environment)
    from backbay.verify.handler import VerifyHandler  # noqa: PLC0415 (torch is loaded: a model is)

    handler = VerifyHandler(given, compilers, registry)
    return lambda: SERVICE.here(handler, environment)
