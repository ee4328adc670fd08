"""What the registry costs, beside torch's own in the same run, against the bars that we set.

    python benchmarks/registry.py [--rounds 15]

Processes take turns in each round. Prints a Markdown table: the measured value (median with its
95 % bootstrap interval, or the one value that a repetition gives), the bar, and whether it holds.
Exit code 1: a bar is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import startup
from backbay.timing import stats

LISTING = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
from backbay.registry import Registry
Registry().list_backends()
took = 1e3 * (time.perf_counter() - start)
modules = len(set(sys.modules) - before)
import json
# Not getrusage: its maximum is inherited from the process that started this one.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([took, modules, int(status["VmHWM"].split()[0]) / 1024]))
"""
TYPO = """
import backbay
try: backbay.lookup_backend("indcutor")
except backbay.BackbayError: pass
"""
TORCH_TYPO = """
import torch
try: torch.compile(lambda x: x, backend="indcutor")
except Exception: pass
"""
SCAN = """
import json, sys, time
from backbay.registry.distributions import scan
from backbay.registry.discovery import ENTRY_POINT_GROUP
times = []
for _ in range(6):
    start = time.perf_counter()
    found = list(scan([sys.argv[1]]).entry_points(ENTRY_POINT_GROUP))
    times.append(1e3 * (time.perf_counter() - start))
assert len(found) == 100, len(found)
print(json.dumps([times[0], min(times[1:])]))
"""
WALL = {
    "torch list": [*startup.PYTHON, startup.TORCH_LIST],
    "list --json": [*startup.PYTHON, startup.COMMAND, "list", "--json"],
    "doctor": [*startup.PYTHON, startup.COMMAND, "doctor"],
    "typo": [*startup.PYTHON, TYPO],
    "torch typo": [*startup.PYTHON, TORCH_TYPO],
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value and its bar."""

    what: str
    value: float
    interval: tuple[float, float] | None
    unit: str
    bar: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is within its bar."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        """Return the row of the table."""
        shown = f"{self.value:.3g}"
        if self.interval is not None:
            shown += f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        bar = f"{'at least' if self.at_least else 'at most'} {self.bar:g}"
        return (
            f"| {self.what} | {shown} {self.unit} | {bar} | {'yes' if self.holds else '**no**'} |"
        )


def main() -> int:
    """Measure, print, and return whether every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    rows = [*listing(rounds), *commands(rounds), *scanning(rounds), *looking_up()]
    startup.print_date()
    print("| what | measured | bar | holds |")
    print("|---|---|---|---|")
    for row in rows:
        print(row.line())
    return 0 if all(row.holds for row in rows) else 1


def listing(rounds: int) -> Iterator[Row]:
    """Measure ``Registry().list_backends()`` in fresh processes."""
    seen = [json.loads(output(LISTING)) for _ in range(rounds)]
    times, modules, memory = zip(*seen, strict=True)
    median, interval = stats.median(times)
    yield Row("`Registry().list_backends()` in a fresh process", median, interval, "ms", 60)
    yield Row("modules that it imports, beyond bare Python's", max(modules), None, "", 60)
    median, interval = stats.median(memory)
    yield Row("peak memory of that process", median, interval, "MB", 30)


def commands(rounds: int) -> Iterator[Row]:
    """Measure commands as a shell would see them, in turns with torch's."""
    walls: dict[str, list[float]] = {name: [] for name in WALL}
    for _ in range(rounds):
        for name, command in WALL.items():
            walls[name].append(startup.wall_ms(command))
    for name, what, bar in (
        ("list --json", "`backbay list --json`", 110),
        ("doctor", "`backbay doctor` without probes", 200),
    ):
        median, interval = stats.median(walls[name])
        yield Row(f"{what}, wall", median, interval, "ms", bar)
    for name, torchs, what, bar in (
        ("list --json", "torch list", "`backbay list --json`: faster than torch's list", 25),
        ("typo", "torch typo", "a typo answered: faster than torch", 20),
    ):
        ratio, interval = stats.ratio(walls[torchs], walls[name])
        yield Row(what, ratio, interval, "times", bar, at_least=True)


def scanning(rounds: int) -> Iterator[Row]:
    """Measure the scan of 1,000 distributions, 100 of which publish a backend."""
    with tempfile.TemporaryDirectory() as folder:
        populate(Path(folder))
        seen = [json.loads(output(SCAN, folder)) for _ in range(rounds)]
    cold, warm = zip(*seen, strict=True)
    for what, values, bar in (("first", cold, 40), ("later", warm, 12)):
        median, interval = stats.median(values)
        yield Row(f"scan of 1,000 distributions, {what} of a process", median, interval, "ms", bar)


def populate(folder: Path) -> None:
    """Write the metadata of 1,000 distributions."""
    for number in range(1000):
        place = folder / f"dist_{number}-1.0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: dist-{number}\nVersion: 1.0\n"
        )
        if number % 2:
            (place / "entry_points.txt").write_text(f"[console_scripts]\nrun{number} = m:main\n")
        if number % 10 == 0:
            (place / "entry_points.txt").write_text(
                f"[torch_dynamo_backends]\nbackend{number} = m:fn\n"
            )


def looking_up() -> Iterator[Row]:
    """Measure a warm look-up of a name, ours and torch's."""
    import torch._dynamo.backends.registry as torchs  # noqa: PLC0415 (not before the processes)

    from backbay.registry import default_registry  # noqa: PLC0415

    ours, theirs = default_registry.lookup_backend, torchs.lookup_backend
    yield Row("warm look-up", per_call_us(lambda: ours("inductor")), None, "µs", 0.3)
    base = per_call_us(lambda: theirs("inductor"))
    print(f"torch's warm look-up: {base:.3f} µs\n", file=sys.stderr)


def per_call_us(call: Callable[[], object], calls: int = 200_000) -> float:
    """Return the time of one call in microseconds, the lambda's own taken off; best of seven."""
    call()
    best = min(timeit.repeat(call, number=calls, repeat=7))
    empty = min(timeit.repeat(lambda: None, number=calls, repeat=7))
    return 1e6 * (best - empty) / calls


def output(program: str, *arguments: str) -> str:
    """Run a program in a fresh process and return what it prints."""
    command = [*startup.PYTHON, program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
