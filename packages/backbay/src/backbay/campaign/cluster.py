"""Runs the races of a campaign on a Ray cluster: Ray places the work, a race stays what it is.

Each device has an actor, which races one workload after the other as a process of its own would:
with child processes, on that device alone. An actor that is lost takes a race with it; that race is
tried once more.
"""

import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from backbay.campaign.here import device_name, raced
from backbay.campaign.place import Raced
from backbay.campaign.plan import Unit
from backbay.causes import one_line
from backbay.decisions import Store
from backbay.dependencies import check_installed
from backbay.errors import InputError
from backbay.race.turns import SharedDevice
from backbay.race.workload_race import Tell
from backbay.registry import default_registry
from backbay.reporting import machine
from backbay.reporting.wording import listed

_TRIES = 2
_PATIENCE_S = 10.0
"""For the head of a cluster to answer."""
_PASSED_ON = ("BACKBAY_", "TORCH", "TRITON_", "HF_")
"""Beginnings of the environment variables that races depend on."""


class Slot(NamedTuple):
    """One device of a node."""

    node: str
    address: str
    device_type: str
    cpus: float


class Told(NamedTuple):
    """What an actor says of where it is."""

    device_name: str
    versions: dict[str, str]


class Worker:
    """What runs in an actor: one device's races, one after the other."""

    def __init__(self, folder: str, path: Sequence[str], threads: str | None) -> None:
        """Go where the races' files are.

        Args:
            folder: the one that the campaign is run from; workers need it at the same place.
            path: where modules are looked for, last.
            threads: ``OMP_NUM_THREADS`` where the campaign is run from. Ray sets one of its own.
        """
        try:
            os.chdir(folder)
        except OSError as error:
            raise InputError(f"{folder} has to be there, too: {error.strerror}") from error
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        sys.path.extend(x for x in path if x not in sys.path)

    def told(self, device: str) -> Told:
        """Return what a campaign must know of this place before it begins."""
        return Told(device_name(device), machine.versions(default_registry.environment, ()))

    def race(self, unit: Unit, *, keep: bool) -> Raced:
        """Race one workload; what can't be raced has a reason in place of a report."""
        try:
            store = Store() if keep else None
            turns = SharedDevice(_identity(unit.device))
            report = raced(unit, store, lambda *_: None, default_registry, turns)
        except InputError as error:
            return Raced(unit=unit, reason=str(error))
        return Raced(unit=unit, report=report)


@dataclass(kw_only=True)
class Cluster:
    """A Ray cluster: one that runs, or one on this machine that ends with the campaign."""

    address: str = ""
    """As `ray.init` takes it; empty: the cluster that runs on this machine, else a new one."""
    only: str | None = None
    """Name of the devices that are used, where there are several kinds."""
    keep: bool = False
    """Whether each worker keeps its decisions in its own store."""
    tell: Tell = lambda *_: None
    _slots: dict[str, list[Slot]] = field(default_factory=dict, init=False)
    """By device."""
    _actors: dict[Slot, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_installed("backbay race --ray", "ray")

    def device_names(self, devices: Iterable[str]) -> Mapping[str, str]:
        """Return what each device is, after a look at every worker."""
        self._connect()
        try:
            return {device: self._look(device) for device in dict.fromkeys(devices)}
        except BaseException:
            self._end()
            raise

    def race(self, units: Sequence[Unit]) -> Iterator[Raced]:
        """Race on all devices at once, and yield each race as it ends."""
        try:
            for device in dict.fromkeys(x.device for x in units):
                yield from self._race_on(device, [x for x in units if x.device == device])
        finally:
            self._end()

    def _connect(self) -> None:
        import ray  # noqa: PLC0415 (an extra, and it takes a second)

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        variables = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}
        try:
            _check_reachable(self.address)
            ray.init(
                address=self.address or None,
                runtime_env={"env_vars": variables},
                log_to_driver=False,
                logging_level="ERROR",
                ignore_reinit_error=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            where = self.address or "this machine"
            raise InputError(f"no Ray cluster at {where}: {one_line(error)}") from error

    def _look(self, device: str) -> str:
        """Find the device's slots, and return the name that they share.

        Raises:
            InputError: there is none, they have several names, or other versions run there.
        """
        import ray  # noqa: PLC0415 (as above)
        from ray.exceptions import RayError  # noqa: PLC0415 (likewise)

        kind, _, index = device.partition(":")
        if index:
            raise InputError(f"device {device!r}: on a cluster Ray chooses which; write {kind!r}")
        slots = list(_slots(ray.nodes(), kind))
        if not slots:
            raise InputError(f"no node of the Ray cluster has a device {kind!r}")
        asked = {slot: self._actor(slot).told.remote(device) for slot in slots}
        try:
            told: dict[Slot, Told] = {slot: ray.get(answer) for slot, answer in asked.items()}
        except RayError as error:
            raise InputError(f"a worker can't be used: {_cause(error)}") from error
        self._slots[device], name = _chosen(told, device, self.only)
        return name

    def _actor(self, slot: Slot) -> Any:
        """Return the actor of a device, which is started if there is none."""
        if slot in self._actors:
            return self._actors[slot]
        import ray  # noqa: PLC0415 (as above)
        from ray.util.scheduling_strategies import (  # noqa: PLC0415 (likewise)
            NodeAffinitySchedulingStrategy,
        )

        options = {
            "num_cpus": slot.cpus,
            "num_gpus": 0 if slot.device_type == "cpu" else 1,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(slot.node, soft=False),
            "max_restarts": 0,
        }
        actor = ray.remote(Worker).options(**options)
        path, threads = [x for x in sys.path if x], os.environ.get("OMP_NUM_THREADS")
        self._actors[slot] = actor.remote(str(Path.cwd()), path, threads)
        return self._actors[slot]

    def _race_on(self, device: str, units: Sequence[Unit]) -> Iterator[Raced]:
        import ray  # noqa: PLC0415 (as above)
        from ray.exceptions import RayActorError, RayError  # noqa: PLC0415 (likewise)

        waiting, tries = deque(units), Counter[Unit]()
        idle, running = deque(self._slots[device]), dict[Any, tuple[Slot, Unit]]()
        while waiting or running:
            while waiting and idle:
                slot, unit = idle.popleft(), waiting.popleft()
                tries[unit] += 1
                self.tell(unit.workload, slot.address, "racing", "")
                running[self._actor(slot).race.remote(unit, keep=self.keep)] = slot, unit
            if not running:
                yield from (Raced(unit=x, reason="no worker is left") for x in waiting)
                return
            (ended, *_), _ = ray.wait(list(running), num_returns=1)
            slot, unit = running.pop(ended)
            try:
                found = ray.get(ended)
            except RayActorError as error:
                del self._actors[slot]
                if _is_alive(ray.nodes(), slot):
                    idle.append(slot)
                if tries[unit] < _TRIES:
                    waiting.append(unit)
                    continue
                found = Raced(unit=unit, reason=f"its worker was lost twice: {_cause(error)}")
            except RayError as error:
                idle.append(slot)
                found = Raced(unit=unit, reason=_cause(error))
            else:
                idle.append(slot)
            yield found

    def _end(self) -> None:
        """Leave the cluster; one that was started for the campaign ends, with all its processes."""
        import ray  # noqa: PLC0415 (as above)

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        ray.shutdown()


def _identity(device: str) -> str:
    """Return what tells this worker's device from the others of its machine."""
    return device if device == "cpu" else f"{device} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}"


def _check_reachable(address: str) -> None:
    """Check that somebody listens there: Ray itself would go on trying for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), _PATIENCE_S).close()


def _slots(nodes: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Slot]:
    """Return a slot for each device of each node that is alive; a node's processors are one."""
    for node in nodes:
        resources = node["Resources"]
        count = 1 if kind == "cpu" else int(resources.get("GPU", 0))
        cpus = resources.get("CPU", 0.0)
        if not node["Alive"] or not count or cpus < count:
            continue
        for _ in range(count):
            yield Slot(node["NodeID"], node["NodeManagerAddress"], kind, cpus // count)


def _is_alive(nodes: Iterable[Mapping[str, Any]], slot: Slot) -> bool:
    return any(node["NodeID"] == slot.node and node["Alive"] for node in nodes)


def _chosen(told: Mapping[Slot, Told], device: str, only: str | None) -> tuple[list[Slot], str]:
    """Return the slots that are used, and the name that they share.

    Raises:
        InputError: they have several names, or other versions than this process.
    """
    here = machine.versions(default_registry.environment, ())
    for slot, answer in told.items():
        if answer.versions != here:
            differing = sorted(
                f"{name} {answer.versions.get(name, 'absent')}, here {here.get(name, 'absent')}"
                for name in {*answer.versions, *here}
                if answer.versions.get(name) != here.get(name)
            )
            raise InputError(f"worker {slot.address} has {'; '.join(differing)}: install the same")
    names = sorted({x.device_name for x in told.values()})
    if only is not None:
        if only not in names:
            raise InputError(f"no worker has a device {only!r}: there are {listed(names)}")
        names = [only]
    if len(names) > 1:
        raise InputError(
            f"the cluster's devices {device!r} are {listed(names)}: times of several devices "
            "don't compare; choose one with --device-name, and run again for another"
        )
    return [slot for slot, answer in told.items() if answer.device_name == names[0]], names[0]


def _cause(error: BaseException) -> str:
    return one_line(getattr(error, "cause", None) or error)
