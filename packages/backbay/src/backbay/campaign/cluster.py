"""Runs the races of a campaign on a Ray cluster: Ray places the work, a race stays what it is.

Each device has a worker, which races one workload after the other as a process of its own would:
with child processes, on that device. A worker that is lost takes a race with it; that race is tried
once more.
"""

import os
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from backbay import cluster
from backbay.campaign.here import device_name, raced
from backbay.campaign.place import Raced
from backbay.campaign.plan import Unit
from backbay.cluster import Slot, Surroundings
from backbay.decisions import Store
from backbay.errors import InputError
from backbay.race.turns import SharedDevice
from backbay.race.workload_race import Tell
from backbay.registry import default_registry
from backbay.reporting.wording import listed

_TRIES = 2


class Told(NamedTuple):
    """What a worker says of where it is."""

    device_name: str
    versions: dict[str, str]


class Worker:
    """One device's races, one after the other."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Go where the races' files are."""
        surroundings.enter()

    def told(self, device: str) -> Told:
        """Return what a campaign must know of this place before it begins."""
        return Told(device_name(device), cluster.versions())

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

    def device_names(self, devices: Iterable[str]) -> Mapping[str, str]:
        """Return what each device is, after a look at every worker."""
        cluster.connect(self.address, "backbay race --ray")
        try:
            return {device: self._look(device) for device in dict.fromkeys(devices)}
        except BaseException:
            self._end()
            raise

    def race(self, units: Sequence[Unit]) -> Generator[Raced, None, None]:
        """Race on all devices at once, and yield each race as it ends."""
        try:
            for device in dict.fromkeys(x.device for x in units):
                yield from self._race_on(device, [x for x in units if x.device == device])
        finally:
            self._end()

    def _look(self, device: str) -> str:
        """Find the device's slots, and return the name that they share.

        Raises:
            InputError: there is none, they have several names, or other versions run there.
        """
        import ray  # noqa: PLC0415 (an extra, and it takes a second)
        from ray.exceptions import RayError  # noqa: PLC0415 (likewise)

        asked = {x: self._actor(x).told.remote(device) for x in cluster.slots(device)}
        try:
            told: dict[Slot, Told] = {slot: ray.get(answer) for slot, answer in asked.items()}
        except RayError as error:
            raise InputError(f"a worker can't be used: {cluster.cause(error)}") from error
        self._slots[device], name = _chosen(told, device, self.only)
        return name

    def _actor(self, slot: Slot) -> Any:
        """Return the worker of a device, which is started if there is none."""
        if slot not in self._actors:
            self._actors[slot] = cluster.started(Worker, slot, Surroundings.here())
        return self._actors[slot]

    def _race_on(self, device: str, units: Sequence[Unit]) -> Iterator[Raced]:
        import ray  # noqa: PLC0415 (as above)
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 (likewise)

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
            except RayTaskError as error:  # what the worker raised; it goes on
                idle.append(slot)
                found = Raced(unit=unit, reason=cluster.cause(error))
            except RayError as error:  # it is gone: killed, out of memory, or its node is
                ray.kill(self._actors.pop(slot))
                if cluster.is_alive(slot):
                    idle.append(slot)
                if tries[unit] < _TRIES:
                    waiting.append(unit)
                    continue
                reason = f"its worker was lost twice: {cluster.cause(error)}"
                found = Raced(unit=unit, reason=reason)
            else:
                idle.append(slot)
            yield found

    def _end(self) -> None:
        cluster.leave(self._actors.values())
        self._actors.clear()


def _chosen(told: Mapping[Slot, Told], device: str, only: str | None) -> tuple[list[Slot], str]:
    """Return the slots that are used, and the name that they share.

    Raises:
        InputError: they have several names, or other versions than this process.
    """
    cluster.check_alike({slot: answer.versions for slot, answer in told.items()})
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


def _identity(device: str) -> str:
    """Return what tells this worker's device from the others of its machine."""
    return device if device == "cpu" else f"{device} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
