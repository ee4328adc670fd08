"""Runs the races of a campaign on this machine, one after the other."""

import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backbay import race
from backbay.campaign.place import Raced
from backbay.campaign.plan import Unit
from backbay.decisions import Store
from backbay.errors import InputError
from backbay.race import Report
from backbay.race.turns import Turns
from backbay.race.workload_race import Tell
from backbay.registry import Registry, default_registry
from backbay.reporting.machine import processor

_NAME = (
    "import sys, torch; from backbay.timing.device import device_name; "
    "print(device_name(torch.device(sys.argv[1])))"
)


@dataclass(frozen=True, kw_only=True)
class Here:
    """This machine."""

    store: Store | None = None
    """Where decisions are kept."""
    tell: Tell = lambda *_: None
    registry: Registry = default_registry

    def device_names(self, devices: Iterable[str]) -> Mapping[str, str]:
        """Return what each device is; an accelerator's name is asked of a child process."""
        return {x: device_name(x) for x in dict.fromkeys(devices)}

    def race(self, units: Sequence[Unit]) -> Generator[Raced, None, None]:
        """Race one after the other; what raises is a row, and the others go on."""
        for unit in units:
            try:
                yield Raced(unit=unit, report=raced(unit, self.store, self.tell, self.registry))
            except InputError as error:
                yield Raced(unit=unit, reason=str(error))


def device_name(device: str) -> str:
    """Return the GPU's own name, or the processor's.

    Raises:
        InputError: the device can't be used.
    """
    if device == "cpu":
        return processor()
    command = [sys.executable, "-c", _NAME, device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason was given"]
        raise InputError(f"device {device!r} can't be used: {said[-1]}")
    return done.stdout.strip()


def raced(
    unit: Unit,
    store: Store | None,
    tell: Tell,
    registry: Registry,
    turns: Turns | None = None,
) -> Report:
    """Race one workload.

    Raises:
        InputError: what was asked for does not exist here.
        Interrupted: by Ctrl-C.
    """
    return race.run(
        unit.workload,
        backends=(),
        arms=unit.arms,
        scopes=unit.scopes,
        dynamic=unit.dynamic,
        fullgraph=unit.fullgraph,
        objective=unit.objective,
        quick=unit.quick,
        train=unit.mode == "train",
        dtype=unit.dtype,
        device=unit.device,
        size=unit.size,
        batch=unit.batch,
        seed=unit.seed,
        limits=unit.limits,
        store=store,
        registry=registry,
        tell=tell,
        turns=turns,
    )
