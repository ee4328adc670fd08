"""Runs a whole race and returns its report."""

import contextlib
import dataclasses
import datetime as dt
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from backbay.decisions import Arm, Store, parse_arm, parse_arms
from backbay.decisions.arm import WHOLE
from backbay.dependencies import check_installed
from backbay.errors import InputError, Interrupted, WorkloadInvalid, warn_of_experimental
from backbay.judge.requests import SERVICE as JUDGE
from backbay.race import field
from backbay.race.caches import Caches
from backbay.race.decide import EAGER
from backbay.race.keeping import keep
from backbay.race.objective import Objective
from backbay.race.record import Report, Settings
from backbay.race.remedies import with_remedy
from backbay.race.requests import (
    SERVICE,
    ArmSetup,
    Check,
    Checked,
    Load,
    Loaded,
    Reply,
    Request,
)
from backbay.race.timing import Limits
from backbay.race.turns import Turns
from backbay.race.waiting import with_waits
from backbay.race.workload_race import OnRow, Sessions, Tell, WorkloadRace
from backbay.ranges import check_seconds, check_seed
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.names import BackendName
from backbay.reporting import machine
from backbay.session import Lost, NoReply, Refused, Session
from backbay.workloads.reference import DEFAULT, PACKAGES, check, parse
from backbay.workloads.setup import (
    Mode,
    WorkloadSetup,
    check_device,
    check_dtype,
    model_name,
    placed,
    sizes,
)

if TYPE_CHECKING:
    from backbay.proof import Workload

Backends = (
    Literal["all"]
    | BackendName
    | Sequence[BackendName]
    | Mapping[str, BackendName | CompilerFn]
    | None
)
"""Names, or ``all``; or compiler functions by name."""

_QUICK_S = 5.0
_QUICK_AT_ONCE = 2
_IN_PROCESS = (
    "the model object was raced in this process: neither cheats nor crashes are contained, "
    "and what ran here before may show in the numbers"
)
_INTERRUPTED = "interrupted: {workload} was not raced to its end, nor any after it"


def run(
    workloads: "str | Sequence[str] | Workload" = DEFAULT,
    *,
    backends: Backends = None,
    arms: str | Sequence[str | Arm] = (),
    scopes: Sequence[str] = (WHOLE,),
    dynamic: bool | None = None,
    fullgraph: bool = False,
    objective: Objective = Objective(),  # noqa: B008 (it is immutable)
    require_all: bool = False,
    train: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    batch: int | Sequence[int] | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    quick: bool = False,
    store: Store | None = None,
    registry: Registry = default_registry,
    tell: Tell = lambda *_: None,
    on_row: OnRow = lambda _: None,
    turns: Turns | None = None,
) -> Report:
    """Race arms on workloads: prove each right, time the survivors side by side, decide.

    Args:
        workloads: references (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``), each raced in child processes; or a `Workload` object. One whose
            name is such a reference, and that is built alike from it with this seed, is raced in
            child processes, too, if they can import the backends; else in this one, as it is.
        backends: ``"all"``, or registered names, ``module:attribute`` or ``file.py:attribute``; for
            a `Workload` object also a mapping of names to compiler functions or registered names.
            ``all``, also among names, is every backend that is ready here and not tagged debug or
            experimental; it is the default where no arms are given. Eager always takes part. A
            backend that is named and does not run here, and a name that nobody knows, is a row with
            its reason, as long as there is another to race.
        arms: what else is raced: backends with a mode and options, as `Arm` or as one writes them:
            ``inductor@reduce-overhead``, ``backbay{parameter_hoist: true}``.
        scopes: what of the model is compiled, each by every arm that does not say so itself:
            ``whole``, ``blocks`` (its repeated layers, in place), or the name of a submodule.
        dynamic: as torch.compile takes it, of every arm.
        fullgraph: likewise.
        objective: what is decided by; default: the time of calls one right after the other.
        require_all: refuse to race unless all that are named are ready.
        train: a step is forward and backward; else forward without gradients.
        dtype: ``float32``, ``bfloat16`` or ``float16``: of parameters and inputs. A `Workload`
            object is raced in the dtype that it has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            is raced where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        batch: rows of a workload's inputs, in place of as many as it has; not of an object's, which
            has `Workload.further` calls instead. Of several, a step calls the model with each in
            turn, and the decision is for the mix.
        seed: of parameters, inputs and everything random.
        limits: how long things may take.
        quick: look for a first answer: of the backends, where none is named, Inductor and what is
            made of it; two arms at once; 5 s of timing.
        store: where decisions are kept; none are if there is none.
        registry: where names are looked up.
        tell: called with workload, arm, what is going on, and how far it is (or nothing).
        on_row: called with each row when it has come, and again when it has times.
        turns: how others are kept away from the device while arms are timed; default: nobody is.

    Raises:
        InputError: what was asked for does not exist or cannot run here; nothing was raced.
        Interrupted: by Ctrl-C; it has the report of what had been raced.
    """
    check_installed("a race")
    limits = limits or Limits()
    if quick:
        timing_s, at_once = min(limits.timing_s, _QUICK_S), limits.at_once or _QUICK_AT_ONCE
        limits = dataclasses.replace(limits, timing_s=timing_s, at_once=at_once)
    _check_numbers(seed, limits)
    if not isinstance(workloads, str | Sequence):
        device, dtype = placed(workloads)
    device = device or registry.environment.default_device
    check_device(device, registry)
    if isinstance(workloads, str | Sequence):
        check_dtype(dtype)
    elif batch is not None:
        raise InputError("a Workload object has the batch that it has: give no other")
    mode: Mode = "train" if train else "infer"
    setups = [
        WorkloadSetup(
            workload=name,
            size=size,
            mode=mode,
            dtype=dtype,
            device=device,
            seed=seed,
            batch=sizes(batch),
        )
        for name in _references(workloads)
    ]
    same_process = not isinstance(workloads, str | Sequence)
    entrants = _entrants(
        registry, backends, _arms(arms), device, same_process=same_process, require_all=require_all
    )
    if quick and backends is None and not arms:
        entrants = field.quick(registry, entrants)
    entrants = field.scoped(entrants, scopes)
    _warn(entrants)
    sessions, notes, references = _sessions(workloads, backends, setups, registry, entrants)
    same_process = references is None
    compiled = {
        x.name: ArmSetup(
            arm=x.arm,
            reference=(references or {}).get(x.arm.backend),
            dynamic=dynamic,
            fullgraph=fullgraph,
        )
        for x in entrants
    }
    _check_arms([compiled[x.name] for x in entrants if x.unavailable is None], sessions)
    settings = Settings(
        backends=tuple(dict.fromkeys(x.arm.backend for x in entrants)),
        arms=tuple(compiled),
        dynamic=dynamic,
        fullgraph=fullgraph,
        objective=objective,
        mode=mode,
        dtype=dtype,
        device=device,
        seed=seed,
    )
    races: list[WorkloadRace] = []
    try:
        _race_all(
            races,
            setups,
            entrants,
            compiled,
            sessions,
            limits=limits,
            objective=objective,
            tell=tell,
            on_row=on_row,
            turns=turns or Turns(),
            capture=store is not None,
        )
    except KeyboardInterrupt as stopped:
        if not races:
            raise
        notes = (*notes, _INTERRUPTED.format(workload=races[-1].workload))
        report = _report(races, settings, registry, notes, same_process=same_process)
        raise Interrupted(msgspec.structs.replace(report, partial=True)) from stopped
    if store is not None:
        notes = (*notes, *keep(races, store, registry))
    return _report(races, settings, registry, notes, same_process=same_process)


def _check_numbers(seed: int, limits: Limits) -> None:
    check_seed(seed)
    for name in ("backend_s", "timing_s", "whole_s"):
        check_seconds(f"limits.{name}", getattr(limits, name))


def _race_all(
    races: list[WorkloadRace],
    setups: Sequence[WorkloadSetup],
    entrants: Sequence[field.Entrant],
    arms: Mapping[str, ArmSetup],
    sessions: Sessions,
    *,
    limits: Limits,
    objective: Objective,
    tell: Tell,
    on_row: OnRow,
    turns: Turns,
    capture: bool,
) -> None:
    """Race every workload, one after the other; what they leave on disk is gone afterwards.

    Each is among ``races`` from its start: what it has found is not lost where it is interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="backbay-race-") as folder:
        for number, setup in enumerate(setups):
            race = WorkloadRace(
                setup=setup,
                entrants=entrants,
                arms=arms,
                caches=Caches(Path(folder)),
                folder=Path(folder) / f"workload-{number}",
                sessions=sessions,
                limits=limits,
                objective=objective,
                tell=tell,
                on_row=on_row,
                turns=turns,
                capture=capture,
            )
            races.append(race)
            race.run()


def _warn(entrants: Sequence[field.Entrant]) -> None:
    """Warn of who is experimental; their processes keep silent."""
    for entrant in entrants:
        if entrant.experimental and entrant.spec is not None:
            warn_of_experimental(entrant.spec.name, str(entrant.spec.origin))


def _references(workloads: "str | Sequence[str] | Workload") -> list[str]:
    if isinstance(workloads, str):
        return [workloads]
    if isinstance(workloads, Sequence):
        return list(dict.fromkeys(workloads)) or [DEFAULT]
    return [workloads.name or model_name(workloads)]


def _arms(arms: str | Sequence[str | Arm]) -> list[Arm]:
    if isinstance(arms, str):
        return parse_arms(arms)
    return [parse_arm(x) if isinstance(x, str) else x for x in arms]


def entrants(
    arms: str | Sequence[str | Arm], scopes: Sequence[str], device: str, registry: Registry
) -> list[field.Entrant]:
    """Return who takes part in a race in this process.

    Raises:
        InputError: nobody can.
    """
    found = field.chosen(registry, _arms(arms), device, same_process=True)
    return field.scoped(found, scopes)


def _entrants(
    registry: Registry,
    backends: Backends,
    arms: Sequence[Arm],
    device: str,
    *,
    same_process: bool,
    require_all: bool,
) -> list[field.Entrant]:
    if isinstance(backends, Mapping):
        known = {name: _spec_of(backend, registry) for name, backend in backends.items()}
        named = [field.Entrant(arm=Arm(backend=x), spec=known[x]) for x in backends if x != EAGER]
        given = [field.Entrant(arm=x, spec=known[x.backend]) for x in arms if x.backend in known]
        arms = [x for x in arms if x.backend not in backends]
    else:
        if backends is None:
            backends = () if arms else field.ALL
        names = [backends] if isinstance(backends, str) else backends
        arms = [*(Arm(backend=name) for name in names), *arms]
        named = given = []
    others = field.chosen(
        registry,
        arms,
        device.partition(":")[0],
        same_process=same_process,
        require_all=require_all,
    )
    return list({x.name: x for x in (others[0], *named, *given, *others[1:])}.values())


def _spec_of(backend: str | CompilerFn, registry: Registry) -> BackendSpec | None:
    """Return what is known of a backend that was given with a name of its own."""
    if not isinstance(backend, str):
        return registry.spec_of(backend)
    return next(iter(registry.candidates(backend)), None)


def _check_arms(arms: Sequence[ArmSetup], sessions: Sessions) -> None:
    """Check modes and options before the first minute is spent.

    Raises:
        InputError: a backend does not take its own.
    """
    configured = tuple(x for x in arms if x.arm.mode or x.arm.options)
    if not configured:
        return
    with sessions.backends({}) as session, contextlib.suppress(NoReply):  # a row will say why
        checked = session.ask(Check(arms=configured), timeout_s=Limits().backend_s)
        assert isinstance(checked, Checked)
        if checked.problems:
            raise InputError("; ".join(checked.problems))


def _sessions(
    workloads: "str | Sequence[str] | Workload",
    backends: Backends,
    setups: Sequence[WorkloadSetup],
    registry: Registry,
    entrants: Sequence[field.Entrant],
) -> tuple[Sessions, tuple[str, ...], Mapping[str, str] | None]:
    """Return how sessions are opened, what a reader must know of it, and what backends are there.

    The last is ``None`` where it is this process.
    """
    disturbed = machine.disturbance()
    notes = (disturbed,) if disturbed else ()
    if isinstance(workloads, str | Sequence):
        if isinstance(backends, Mapping):
            raise InputError(
                "compiler functions cannot travel to child processes: race a Workload object"
            )
        _preflight(setups)
        return Sessions(reference=JUDGE.session, backends=SERVICE.session), notes, {}
    from backbay.race.rebuilding import NotRebuilt  # noqa: PLC0415 (torch is loaded: a model is)

    given = backends if isinstance(backends, Mapping) else {}
    path = [str(Path.cwd()), *filter(None, sys.path)]
    try:
        references = _rebuilt(workloads, given, setups[0], registry, entrants=entrants, path=path)
    except NotRebuilt as why:
        return _here(workloads, given, registry), (f"{_IN_PROCESS} ({why})",), None
    sessions = Sessions(
        reference=lambda environment: JUDGE.session(environment, path),
        backends=lambda environment: SERVICE.session(environment, path),
    )
    return sessions, notes, references


def _here(
    workload: "Workload", given: Mapping[str, BackendName | CompilerFn], registry: Registry
) -> Sessions:
    from backbay.judge.handler import JudgeHandler  # noqa: PLC0415 (torch is loaded: a model is)
    from backbay.race.handler import RaceHandler  # noqa: PLC0415 (as above)

    handler, reference = RaceHandler(workload, given, registry), JudgeHandler(workload)
    return Sessions(
        here=True,
        reference=lambda environment: JUDGE.here(reference, environment),
        backends=lambda environment: SERVICE.here(handler, environment),
    )


def _rebuilt(
    workload: "Workload",
    given: Mapping[str, BackendName | CompilerFn],
    setup: WorkloadSetup,
    registry: Registry,
    *,
    entrants: Sequence[field.Entrant],
    path: Sequence[str],
) -> Mapping[str, str]:
    """Return what backends are known by in processes where the model is built alike.

    Raises:
        NotRebuilt: there are none.
    """
    from backbay.proof.sequence import mixed  # noqa: PLC0415 (torch is loaded: a model is)
    from backbay.race import rebuilding  # noqa: PLC0415 (as above)

    rebuilding.check_named(workload)
    if registry is not default_registry:
        raise rebuilding.NotRebuilt("other processes have another registry")
    names = list(dict.fromkeys(x.arm.backend for x in entrants if x.unavailable is None))
    references = rebuilding.references(registry, names, given)
    backends = tuple(references.get(name, name) for name in names if name != EAGER)
    try:
        with SERVICE.session(path=path) as session:
            request = Load(setup=setup, backends=backends)
            loaded = session.ask(request, timeout_s=Limits().backend_s)
    except NoReply as failure:
        raise rebuilding.NotRebuilt(f"another process can't: {failure.reason}") from failure
    assert isinstance(loaded, Loaded)
    if loaded.likeness != rebuilding.likeness(mixed(workload)):
        raise rebuilding.NotRebuilt(f"what {workload.name} builds with this seed is another model")
    return references


def _preflight(setups: Sequence[WorkloadSetup]) -> None:
    """Find every mistake in the references before the first minute is spent.

    Raises:
        WorkloadNotFound: a reference names nothing.
        WorkloadInvalid: a user's function raised, or returned no model.
    """
    for setup in setups:
        check(setup.workload, setup.size)
    if len(setups) == 1:  # its reference run comes first anyway
        return
    with SERVICE.session() as session:
        for setup in setups:
            if parse(setup.workload, setup.size).kind == "own":
                _load(session, setup)


def _load(session: Session[Request, Reply], setup: WorkloadSetup) -> None:
    try:
        with contextlib.suppress(Lost):  # its own race will say so, and others can be raced
            session.ask(Load(setup=setup), timeout_s=Limits().backend_s)
    except Refused as refused:
        raise WorkloadInvalid(refused.reason, refused.detail) from None


def _report(
    races: Sequence[WorkloadRace],
    settings: Settings,
    registry: Registry,
    notes: Sequence[str],
    *,
    same_process: bool,
) -> Report:
    decisions = [race.decision for race in races]
    specs = {entrant.name: entrant.spec for entrant in races[0].entrants}
    device_name = next((race.device_name for race in races if race.device_name), settings.device)
    several = len(races) > 1
    noted = [f"{x.workload}: {note}" if several else note for x in races for note in x.notes]
    return Report(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine(device_name),
        versions=_versions(races, registry),
        settings=settings,
        isolation="in_process" if same_process else "process",
        decision=tuple(decision for decision in decisions if decision is not None),
        results=tuple(
            with_waits(
                with_remedy(result, specs[result.arm], registry.environment),
                _spec(result.backend, registry),
            )
            for race in races
            for result in race.results
        ),
        notes=(*notes, *noted),
    )


def _spec(backend: str, registry: Registry) -> BackendSpec | None:
    """Return what is known of a backend, its options too; nothing of a function in a file."""
    with contextlib.suppress(InputError):
        return registry.spec(backend)
    return None


def _versions(races: Sequence[WorkloadRace], registry: Registry) -> dict[str, str]:
    specs = [entrant.spec for entrant in races[0].entrants if entrant.spec is not None]
    prefixes = {race.workload.partition(":")[0] for race in races}
    packages = [name for prefix in sorted(prefixes) for name in PACKAGES.get(prefix, ())]
    return machine.versions(registry.environment, specs, packages)
