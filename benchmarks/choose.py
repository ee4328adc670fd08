"""Whether `backbay.choose` chooses well: decided by a race, applied and timed anew afterwards.

    python benchmarks/choose.py CAMPAIGN.toml --state FOLDER [--at-once 1] [--seconds 6]
        [--until SECONDS] [--only PATTERN ...] [--out FILE]

Each workload of the campaign (``benchmarks/campaigns`` has one for a CPU and one for a GPU) is
raced, and its decision is kept. Then a new process builds it, asks `backbay.choose` for it, which
applies what was decided and races nothing, and times what came back beside every arm that was
right, in turns. What is in the state folder is not done again: a run that was stopped goes on where
it was. With ``--at-once`` several workloads compile side by side; while one is timed, the others
are stopped, and what races say of compile times holds nothing.

The table is of everything in the folder; it is printed, and written to --out, with a JSON. The exit
code is 1 if what was chosen is worse than the best arm in a row, or in the mean no better than
Inductor's default.
"""

import argparse
import contextlib
import fnmatch
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from backbay.campaign.here import device_name, raced
from backbay.campaign.plan import Unit, read
from backbay.campaign.results import Results, digest
from backbay.decisions import Store
from backbay.errors import InputError
from backbay.race import Report
from backbay.race.turns import SharedDevice
from backbay.registry import default_registry
from speed import chosen
from speed.chosen import Anew
from speed.command import write

_SETTLE_S = 0.3
"""Until what the stopped ones had handed to the device is done."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process is to do with one workload."""

    unit: Unit
    device_name: str
    state: str
    seconds: float
    anew: bool
    """Whether it is to be timed anew; else it is raced."""
    driver: int
    """Who started this process and all others."""


class Alone(SharedDevice):
    """Turns of a process that stops all others of this benchmark while it times."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.device_name)
        self._driver = psutil.Process(task.driver)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work at any time: who times stops this process."""
        yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Wait until nobody else times, and stop whoever works."""
        with super().timing():
            own = {os.getpid(), *(x.pid for x in psutil.Process().children(recursive=True))}
            others = [x for x in self._driver.children(recursive=True) if x.pid not in own]
            with stopped(others):
                yield


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes meanwhile."""
    try:
        tell(processes, signal.SIGSTOP)
        time.sleep(_SETTLE_S if processes else 0.0)
        yield
    finally:
        tell(processes, signal.SIGCONT)


def tell(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


class Folder:
    """What was done."""

    def __init__(self, state: Path, device: str) -> None:
        self._races = Results(state / "races", default_registry.environment)
        self._device = device
        self._anew = state / "anew"

    def race(self, unit: Unit) -> tuple[str, Report] | None:
        """Return the name of a race's file, and the race."""
        return self._races.find(digest(unit, self._device))

    def keep_race(self, unit: Unit, report: Report) -> None:
        """Keep a race."""
        self._races.keep(unit, digest(unit, self._device), report)

    def anew(self, unit: Unit) -> Anew | None:
        """Return what was timed after a race."""
        path = self._path(unit)
        if path is None or not path.exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=Anew)

    def keep_anew(self, unit: Unit, anew: Anew) -> None:
        """Keep what was timed after a race."""
        path = self._path(unit)
        assert path is not None, "it was raced before"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(anew))
        part.replace(path)

    def _path(self, unit: Unit) -> Path | None:
        race = self.race(unit)
        return None if race is None else self._anew / race[0]


def main() -> int:
    """Do what is missing, and write the table."""
    given = parsed()
    state = given.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    os.environ["BACKBAY_CACHE"] = str(state / "cache")  # the store, and what races wait for
    units = read(given.campaign, default_registry).units
    names = {x: device_name(x) for x in {unit.device for unit in units}}
    folders = {x: Folder(state, name) for x, name in names.items()}
    begun = time.monotonic()

    def one(unit: Unit) -> None:
        folder = folders[unit.device]
        for anew in (False, True):
            done = folder.anew(unit) if anew else folder.race(unit)
            if done is not None or time.monotonic() - begun > given.until:
                continue
            child(
                Task(
                    unit=unit,
                    device_name=names[unit.device],
                    state=str(state),
                    seconds=given.seconds,
                    anew=anew,
                    driver=os.getpid(),
                )
            )

    asked = [x for x in units if any(fnmatch.fnmatch(x.workload, y) for y in given.only)]
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(one, asked))
    found = [y for x in units if (y := folders[x.device].anew(x)) is not None]
    races = [race[1] for x in units if (race := folders[x.device].race(x)) is not None]
    reports: dict[tuple[str, str], Report] = {
        (x.workload, x.mode): report for report in races for x in report.decision
    }
    command = f"python benchmarks/choose.py {given.campaign}"
    write(given.out, chosen.text(found, reports, command), chosen.document(found))
    if len(found) < len(units):
        print(f"{len(found)} of {len(units)} workloads are done: call again to go on")
    mean = chosen.mean(found)
    better = mean is not None and mean.interval[0] > 1.0
    return 0 if better and all(chosen.row(x).holds for x in found) else 1


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--state", type=Path, required=True, help="folder of what was done")
    parser.add_argument("--at-once", type=int, default=1, help="workloads that compile at once")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing a workload anew")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin nothing later")
    parser.add_argument("--only", nargs="+", default=["*"], help="workloads, with * and ?")
    parser.add_argument("--out", type=Path, help="file for the table; its JSON goes beside it")
    return parser.parse_args()


def child(task: Task) -> None:
    """Do a task in a process of its own, with compiler caches of its own."""
    what = f"{'anew' if task.anew else 'race'} {task.unit.workload}, {task.unit.mode}"
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backbay-choose-") as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        done = subprocess.run(
            [sys.executable, __file__, "--child"],
            input=msgspec.json.encode(task),
            env={**os.environ, **caches, "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    said = done.stdout.decode(errors="replace").strip().splitlines()
    took = time.monotonic() - begun
    print(f"{what}: {'done' if not done.returncode else 'FAILED'}, {took:.0f} s", flush=True)
    if said:
        print("\n".join(f"  {x}" for x in said[-6 if done.returncode else -1 :]), flush=True)


def serve() -> None:
    """Do the task that is read from standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    folder = Folder(Path(task.state), task.device_name)
    device = Alone(task)
    if not task.anew:
        report = raced(task.unit, Store(), lambda *_: None, default_registry, device)
        folder.keep_race(task.unit, report)
        print("; ".join(x.sentence for x in report.decision))
        return
    race = folder.race(task.unit)
    assert race is not None, "it was raced before"
    from speed.applied import timed_anew  # noqa: PLC0415 (who starts children needs no torch)

    anew = timed_anew(task.unit, race[1], device, task.seconds)
    folder.keep_anew(task.unit, anew)
    row = chosen.row(anew)
    print(f"{row.decided}: {row.over_best} of {row.best}; inductor / chosen {row.over_inductor}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        try:
            serve()
        except InputError as error:
            sys.exit(str(error))
    else:
        sys.exit(main())
