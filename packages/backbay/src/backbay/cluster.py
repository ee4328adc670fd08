"""Workers on a Ray cluster: where they can be, how each is started, and who may be one.

Ray places work and tells which worker is gone; what a worker does is its class's own affair. Ray is
an extra, and takes a second to import.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backbay.causes import one_line
from backbay.dependencies import check_installed
from backbay.errors import BackbayError, InputError, keep_silent
from backbay.registry import default_registry
from backbay.reporting import machine

_PATIENCE_S = 10.0
"""For the head of a cluster to answer."""
_PASSED_ON = ("BACKBAY_", "TORCH", "TRITON_", "HF_")
"""Beginnings of the environment variables that results depend on."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM_PATCH_PRINT": "0",  # Dynamo would trace into the `print` that it puts in its place
}
"""Of Ray, where nobody has set them."""


class Slot(NamedTuple):
    """Where one worker can be."""

    node: str
    address: str
    number: int
    """Which one of its node."""
    cpus: float
    gpus: float


class Surroundings(NamedTuple):
    """What a worker takes over from the process that asks."""

    folder: str
    """Where it runs; workers need it at the same place."""
    path: Sequence[str]
    """Where modules are looked for, last."""
    threads: str | None
    """``OMP_NUM_THREADS``; Ray would set one of its own."""

    @classmethod
    def here(cls) -> "Surroundings":
        """Return those of this process."""
        path = [x for x in sys.path if x]
        return cls(str(Path.cwd()), path, os.environ.get("OMP_NUM_THREADS"))

    def enter(self) -> None:
        """Make them those of this process.

        Raises:
            InputError: the folder is not here.
        """
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise InputError(f"{self.folder} has to be there, too: {error.strerror}") from error
        os.environ.pop("OMP_NUM_THREADS", None)
        if self.threads is not None:
            os.environ["OMP_NUM_THREADS"] = self.threads
        sys.path.extend(x for x in self.path if x not in sys.path)
        keep_silent()  # what a worker prints is shown where it is asked


def connect(address: str, what: str) -> None:
    """Connect to a cluster.

    Args:
        address: as `ray.init` takes it; empty: the one that runs on this machine, else a new one,
            which ends with `leave`.
        what: what needs it, for errors.

    Raises:
        InputError: Ray is not installed, or there is no such cluster.
    """
    check_installed(what, "ray")
    import ray  # noqa: PLC0415 (an extra)

    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    variables = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _check_reachable(address)
        ray.init(
            address=address or None,
            runtime_env={"env_vars": variables},
            log_to_driver=False,
            logging_level="ERROR",
            ignore_reinit_error=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        where = address or "this machine"
        raise InputError(f"no Ray cluster at {where}: {one_line(error)}") from error
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGTERM, handler)  # Ray took its place, and would end the process


def leave(actors: Iterable[Any]) -> None:
    """End workers and leave the cluster; one that was started for us ends, with all processes."""
    import ray  # noqa: PLC0415 (an extra)

    for actor in actors:
        ray.kill(actor)
    ray.shutdown()


def slots(device: str, *, each_core: bool = False) -> list[Slot]:
    """Return where workers can be: one for each GPU, or one for the processors of each node.

    Args:
        device: a type; Ray chooses which one of several.
        each_core: one for each core in place of one for all, with a CPU.

    Raises:
        InputError: there are none.
    """
    import ray  # noqa: PLC0415 (an extra)

    kind, _, index = device.partition(":")
    if index:
        raise InputError(f"device {device!r}: on a cluster Ray chooses which; write {kind!r}")
    found = [x for node in ray.nodes() for x in _slots_of(node, kind, each_core=each_core)]
    if not found:
        raise InputError(f"no node of the Ray cluster has a device {kind!r}")
    return found


def started(worker: type, slot: Slot, *args: Any) -> Any:
    """Start a worker, and return its actor; who calls it is told of all that goes wrong."""
    import ray  # noqa: PLC0415 (an extra)
    from ray.util.scheduling_strategies import (  # noqa: PLC0415 (likewise)
        NodeAffinitySchedulingStrategy,
    )

    options = {
        "num_cpus": slot.cpus,
        "num_gpus": slot.gpus,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(slot.node, soft=False),
        "max_restarts": 0,
    }
    return ray.remote(worker).options(**options).remote(*args)


def is_alive(slot: Slot) -> bool:
    """Whether the node of a slot is."""
    import ray  # noqa: PLC0415 (an extra)

    return any(node["NodeID"] == slot.node and node["Alive"] for node in ray.nodes())


def versions() -> dict[str, str]:
    """Return what must be installed alike everywhere: python, torch, triton, backbay."""
    return machine.versions(default_registry.environment, ())


def check_alike(told: Mapping[Slot, Mapping[str, str]]) -> None:
    """Check that workers have the versions of this process.

    Raises:
        InputError: one of them has not.
    """
    here = versions()
    for slot, there in told.items():
        differing = [
            f"{name} {there.get(name, 'absent')}, here {here.get(name, 'absent')}"
            for name in sorted({*there, *here})
            if there.get(name) != here.get(name)
        ]
        if differing:
            raise InputError(f"worker {slot.address} has {'; '.join(differing)}: install the same")


def cause(error: BaseException) -> str:
    """Return in one line what a worker raised, or what became of it."""
    inner = getattr(error, "cause", None) or error
    return str(inner) if isinstance(inner, BackbayError) else one_line(inner)


def _check_reachable(address: str) -> None:
    """Check that somebody listens there: Ray itself would go on trying for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), _PATIENCE_S).close()


def _slots_of(node: Mapping[str, Any], kind: str, *, each_core: bool) -> Iterator[Slot]:
    cpus = node["Resources"].get("CPU", 0.0)
    gpus = 0 if kind == "cpu" else int(node["Resources"].get("GPU", 0))
    count = gpus
    if kind == "cpu":
        count = int(cpus) if each_core else 1
    if not node["Alive"] or not count or cpus < count:
        return
    for number in range(count):
        yield Slot(
            node["NodeID"], node["NodeManagerAddress"], number, cpus // count, min(gpus, 1.0)
        )
