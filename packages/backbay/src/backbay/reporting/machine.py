"""Where a race was run, and with what versions: found out without importing torch."""

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from backbay.registry import BackendSpec, Environment
from backbay.registry.distributions import required_name

_LOOK_S = 0.5
QUIET_CORES = 0.3


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where something was measured."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    device: str
    """What the models ran on: ``cpu``, or the GPU's own name."""


def machine(device_name: str) -> Machine:
    """Describe this machine; of its cores, those that this process may use count."""
    import psutil  # noqa: PLC0415 (an extra, and a record is read without it)

    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=processor(),
        cores=cores(),
        memory_bytes=psutil.virtual_memory().total,
        device=device_name,
    )


def cores() -> int:
    """Return how many cores this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return len(usable) if usable is not None else os.cpu_count() or 1


class Load:
    """How many cores other processes use, from when it is made on."""

    def __init__(self) -> None:
        self._start = _now()

    def others(self) -> float:
        """Return the cores that were busy with what is neither this process nor a child of its."""
        since, busy, own = (y - x for x, y in zip(self._start, _now(), strict=True))
        return max(0.0, (busy - own) / since) if since > 0 else 0.0


def _now() -> tuple[float, float, float]:
    """Return seconds: of the clock, of all cores at work, of this process and its children."""
    import psutil  # noqa: PLC0415 (as above)

    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    own, here = 0.0, psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended; who waits for it has its times
            own += sum(process.cpu_times()[:4])
    return time.monotonic(), sum(times) - idle - guests, own


def disturbance() -> str | None:
    """Return what to say where other processes use this machine: a race measures them too.

    Takes half a second. ``None`` where the machine is quiet.
    """
    import psutil  # noqa: PLC0415 (as above)

    busy = psutil.cpu_percent(interval=_LOOK_S) / 100 * (psutil.cpu_count() or 1)
    if busy < QUIET_CORES:
        return None
    return (
        f"other processes kept {busy:.1f} cores busy at the start: "
        "the times are those of a busy machine, and may mislead"
    )


def versions(
    environment: Environment, raced: Iterable[BackendSpec], extra: Iterable[str] = ()
) -> dict[str, str]:
    """Return the versions that a result depends on: name to version.

    Args:
        environment: where to look.
        raced: the backends in the race; what provides them is included, and the engines that they
            require.
        extra: further distributions to include where they are installed.
    """
    import backbay  # noqa: PLC0415 (backbay imports this package lazily, and so back)

    named = {"python": platform.python_version(), "backbay": backbay.__version__}
    providers = [
        name
        for spec in raced
        for name in (spec.origin.distribution, *map(required_name, spec.requires.distributions))
        if name
    ]
    for name in ["torch", "triton", *extra, *providers]:
        found = environment.installed.find(name)
        if found is not None:
            named[found.name] = found.version
    torch_version = environment.torch_build.get("__version__")
    return named | ({"torch": torch_version} if torch_version else {})


def is_installed(versions: Mapping[str, str], environment: Environment) -> bool:
    """Whether these versions, as `versions` returns them, are those of this installation."""
    import backbay  # noqa: PLC0415 (as above)

    ours = {"python": platform.python_version(), "backbay": backbay.__version__}
    torch_version = environment.torch_build.get("__version__")
    ours |= {"torch": torch_version} if torch_version else {}
    for name, version in versions.items():
        found = environment.installed.find(name)
        if ours.get(name, found.version if found is not None else None) != version:
            return False
    return True


def processor() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
