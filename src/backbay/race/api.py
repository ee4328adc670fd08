"""Runs a whole race and gives its report."""

import datetime as dt
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backbay.child import ChildLost
from backbay.dependencies import check_installed
from backbay.errors import InputError, WorkloadInvalid
from backbay.race import field, job, machine
from backbay.race.caches import Caches
from backbay.race.decide import EAGER
from backbay.race.heat import Heat, OpenLane, Tell
from backbay.race.lane import InProcessLane, Lane, open_child
from backbay.race.record import Mode, Report, Settings
from backbay.race.timing import Limits
from backbay.race.workloads.reference import DEFAULT, check, parse
from backbay.registry import CompilerFn, Registry, default_registry

if TYPE_CHECKING:
    from backbay.proof import Workload

DTYPES = ("float32", "bfloat16", "float16")

_MODEL_PACKAGES = {"hf": ["transformers"], "timm": ["timm", "torchvision"]}
"""Distributions whose versions a result depends on, by the prefix of a workload's reference."""

_IN_PROCESS = (
    "the model object was raced in this process: a crash or a hang would have ended it, "
    "and what ran here before may show in the numbers"
)


def run(
    workloads: "str | Sequence[str] | Workload" = DEFAULT,
    *,
    backends: Sequence[str] | Mapping[str, str | CompilerFn] | None = None,
    train: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    registry: Registry = default_registry,
    tell: Tell = lambda _workload, _backend, _text: None,
) -> Report:
    """Race backends on workloads: prove each right, time the survivors side by side, decide.

    Args:
        workloads: references (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``), each raced in child processes; or a `Workload` object, raced in
            this process as it is.
        backends: registered names, ``module:attribute`` or ``file.py:attribute``; for a `Workload`
            object also a mapping of names to compiler functions or registered names. Default: every
            backend that is ready here and not tagged debug or experimental. Eager always takes
            part.
        train: a step is forward and backward; else forward without gradients.
        dtype: ``float32``, ``bfloat16`` or ``float16``: of parameters and inputs. A `Workload`
            object is raced in the dtype that it has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            is raced where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        seed: of parameters, inputs and everything random.
        limits: how long things may take.
        registry: where names are looked up.
        tell: called with workload, backend and what is going on.

    Raises:
        InputError: what was asked for does not exist or cannot run here; nothing was raced.
    """
    check_installed("a race")
    if not isinstance(workloads, str | Sequence):
        device, dtype = placed(workloads)
    device = device or registry.environment.default_device
    check_device(device, registry)
    if isinstance(workloads, str | Sequence) and dtype not in DTYPES:
        raise InputError(f"no dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    mode: Mode = "train" if train else "infer"
    setups = [
        job.Setup(workload=name, size=size, mode=mode, dtype=dtype, device=device, seed=seed)
        for name in _references(workloads)
    ]
    same_process = not isinstance(workloads, str | Sequence)
    entrants = _entrants(registry, backends, device, same_process=same_process)
    open_lane, notes = _lanes(workloads, backends, setups, registry)
    heats = _conduct(setups, entrants, open_lane, limits or Limits(), tell)
    settings = Settings(
        backends=tuple(entrant.name for entrant in entrants),
        mode=mode,
        dtype=dtype,
        device=device,
        seed=seed,
    )
    return _report(heats, settings, registry, notes)


def _conduct(
    setups: Sequence[job.Setup],
    entrants: Sequence[field.Entrant],
    open_lane: OpenLane,
    limits: Limits,
    tell: Tell,
) -> list[Heat]:
    """Race every workload, one after the other; what they leave on disk is gone afterwards."""
    heats: list[Heat] = []
    with tempfile.TemporaryDirectory(prefix="backbay-race-") as folder:
        for setup in setups:
            heat = Heat(
                setup=setup,
                entrants=entrants,
                caches=Caches(Path(folder)),
                golden=Path(folder) / "golden.pt",
                open_lane=open_lane,
                limits=limits,
                tell=tell,
            )
            heat.run()
            heats.append(heat)
    return heats


def placed(workload: "Workload") -> tuple[str, str]:
    """Give the device and the dtype that a workload object has."""
    tensors = [*workload.model.parameters(), *workload.model.buffers()]
    tensors += [value for value in workload.args if hasattr(value, "is_floating_point")]
    if not tensors:
        return "cpu", DTYPES[0]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return str(tensors[0].device), str((floating or tensors)[0].dtype).removeprefix("torch.")


def _references(workloads: "str | Sequence[str] | Workload") -> list[str]:
    if isinstance(workloads, str):
        return [workloads]
    if isinstance(workloads, Sequence):
        return list(dict.fromkeys(workloads)) or [DEFAULT]
    return [workloads.name or type(workloads.model).__name__]


def check_device(device: str, registry: Registry) -> None:
    """Check that a device is here.

    Raises:
        InputError: it is not, or nobody knows it.
    """
    kind = device.partition(":")[0]
    reason = registry.environment.devices.get(kind)
    if reason is None:
        known = ", ".join(registry.environment.devices)
        raise InputError(f"no device {device!r}: choose one of {known}")
    if reason:
        raise InputError(f"device {device!r} can't be used: {reason}")


def _entrants(
    registry: Registry,
    backends: Sequence[str] | Mapping[str, str | CompilerFn] | None,
    device: str,
    *,
    same_process: bool,
) -> list[field.Entrant]:
    kind = device.partition(":")[0]
    if backends is None:
        return field.by_default(registry, kind, same_process=same_process)
    if isinstance(backends, Mapping):
        others = [field.Entrant(name=name) for name in backends if name != EAGER]
        return [field.Entrant(name=EAGER), *others]
    return field.chosen(registry, backends, kind, same_process=same_process)


def _lanes(
    workloads: "str | Sequence[str] | Workload",
    backends: Sequence[str] | Mapping[str, str | CompilerFn] | None,
    setups: Sequence[job.Setup],
    registry: Registry,
) -> tuple[OpenLane, tuple[str, ...]]:
    """Give what opens a lane, and what a reader must know of it."""
    if not isinstance(workloads, str | Sequence):
        from backbay.race.bench import Bench  # noqa: PLC0415 (torch is loaded: there is a model)

        given = backends if isinstance(backends, Mapping) else None
        bench = Bench(workloads, given, registry)
        return (lambda environment: InProcessLane(bench, environment)), (_IN_PROCESS,)
    if isinstance(backends, Mapping):
        raise InputError(
            "compiler functions cannot travel to child processes: race a Workload object"
        )
    _preflight(setups)
    disturbed = machine.disturbance()
    return open_child, (disturbed,) if disturbed else ()


def _preflight(setups: Sequence[job.Setup]) -> None:
    """Find every mistake in the references before the first minute is spent.

    Raises:
        WorkloadNotFound: a reference names nothing.
        WorkloadInvalid: a user's function raised, or returned no model.
    """
    for setup in setups:
        check(setup.workload, setup.size)
    if len(setups) == 1:  # its reference run comes first anyway
        return
    with open_child({}) as child:
        for setup in setups:
            if parse(setup.workload, setup.size).kind == "own":
                _load(child, setup)


def _load(child: Lane, setup: job.Setup) -> None:
    try:
        reply = child.ask(job.Load(setup=setup), timeout_s=Limits().backend_s)
    except ChildLost as lost:
        raise WorkloadInvalid(f"workload {setup.workload!r}: {lost.reason}") from lost
    if isinstance(reply, job.Refused):
        raise WorkloadInvalid(reply.reason, reply.detail)


def _report(
    heats: Sequence[Heat],
    settings: Settings,
    registry: Registry,
    notes: Sequence[str],
) -> Report:
    decisions = [heat.decision for heat in heats]
    device_name = next((heat.device_name for heat in heats if heat.device_name), settings.device)
    several = len(heats) > 1
    noted = [f"{h.workload}: {note}" if several else note for h in heats for note in h.notes]
    return Report(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine(device_name),
        versions=_versions(heats, registry),
        settings=settings,
        decision=tuple(decision for decision in decisions if decision is not None),
        results=tuple(result for heat in heats for result in heat.results),
        notes=(*notes, *noted),
    )


def _versions(heats: Sequence[Heat], registry: Registry) -> dict[str, str]:
    specs = [entrant.spec for entrant in heats[0].entrants if entrant.spec is not None]
    prefixes = {heat.workload.partition(":")[0] for heat in heats}
    packages = [name for prefix in sorted(prefixes) for name in _MODEL_PACKAGES.get(prefix, [])]
    return machine.versions(registry.environment, specs, packages)
