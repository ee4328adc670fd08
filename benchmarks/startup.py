"""What Backbay costs to start, beside torch's own registry, in the same run.

    python benchmarks/startup.py [--rounds 15]
    python benchmarks/startup.py --uvx dist/backbay-VERSION-py3-none-any.whl [--rounds 5]

Every row is a fresh process; the rows take turns in each round. Prints a Markdown table: median
wall time with its 95 % bootstrap interval, and how many times faster than torch's list it is. The
last row is the time of `import backbay` alone, inside the process.

With --uvx: what `uvx backbay list` takes from a wheel, with an empty cache in each round and once
more with that cache; how much it downloads, how many packages, and whether torch is one.
"""

import argparse
import datetime as dt
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from backbay.registry import Environment
from backbay.timing import stats

PYTHON = [sys.executable, "-c"]
TORCH_LIST = "import torch; torch.compiler.list_backends()"
COMMAND = "import sys; sys.argv[0] = 'backbay'; from backbay.cli import main; main()"
ROWS = {
    "python -c pass": [*PYTHON, "pass"],
    "import backbay": [*PYTHON, "import backbay"],
    "backbay.list_backends()": [*PYTHON, "import backbay; backbay.list_backends()"],
    "backbay list": [*PYTHON, COMMAND, "list"],
    "backbay list --json": [*PYTHON, COMMAND, "list", "--json"],
    "backbay info inductor": [*PYTHON, COMMAND, "info", "inductor"],
    "torch.compiler.list_backends()": [*PYTHON, TORCH_LIST],
}
IMPORT_ALONE = (
    "import time; start = time.perf_counter(); import backbay; print(time.perf_counter() - start)"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--uvx", type=Path, metavar="WHEEL", help="needs uv on the path")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    if arguments.uvx is not None:
        from_wheel(arguments.uvx, rounds)
        return
    samples: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(rounds):
        for name, command in ROWS.items():
            samples[name].append(wall_ms(command))
    print_header()
    torch_list = samples["torch.compiler.list_backends()"]
    for name, values in samples.items():
        median, (low, high) = stats.median(values)
        ratio, (least, most) = stats.ratio(torch_list, values)
        wall = f"{median:.0f} [{low:.0f}, {high:.0f}]"
        print(f"| `{name}` | {wall} | {ratio:.1f} [{least:.1f}, {most:.1f}] |")
    alone = statistics.median(import_alone_ms() for _ in range(rounds))
    print(f"\n`import backbay` inside the process: {alone:.1f} ms (median of {rounds})")


def wall_ms(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Run a command in a fresh process and give its wall time in milliseconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return 1e3 * (time.perf_counter() - start)


def from_wheel(wheel: Path, rounds: int) -> None:
    """Measure and print what `uvx backbay list` takes and brings."""
    command = ["uvx", "--from", str(wheel), "backbay", "list"]
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "UV_CACHE_DIR": cache}
            cold.append(wall_ms(command, environment))
            warm.append(wall_ms(command, environment))
            files = [x for x in Path(cache).rglob("*") if x.is_file() and not x.is_symlink()]
            size = sum(x.stat().st_size for x in files)
            described = [x.parent.name for x in Path(cache).rglob("*.dist-info/METADATA")]
    packages = sorted({x.partition("-")[0] for x in described})
    uv = subprocess.run(["uv", "--version"], check=True, capture_output=True, text=True).stdout
    print(f"{dt.datetime.now(dt.UTC).date()}, {uv.strip()}, {os.cpu_count()} cores\n")
    print("| `uvx backbay list` | wall ms, median [95 %] |")
    print("|---|---|")
    for name, values in (("empty cache", cold), ("that cache again", warm)):
        median, (low, high) = stats.median(values)
        print(f"| {name} | {median:.0f} [{low:.0f}, {high:.0f}] |")
    print(f"\nThe wheel has {wheel.stat().st_size / 1e3:.0f} kB, the cache {size / 1e6:.0f} MB.")
    print(
        f"Packages: {len(packages)}, torch {'among' if 'torch' in packages else 'not among'} them:"
    )
    print(f"{', '.join(packages)}.")


def import_alone_ms() -> float:
    """Return the time of the import statement, in milliseconds, in a fresh process."""
    done = subprocess.run([*PYTHON, IMPORT_ALONE], check=True, capture_output=True, text=True)
    return 1e3 * float(done.stdout)


def print_date() -> None:
    """Print when and with what this was measured."""
    torch_version = Environment.current().torch_build.get("__version__")
    today = dt.datetime.now(dt.UTC).date()
    print(f"{today}, Python {platform.python_version()}, torch {torch_version}\n")


def print_header() -> None:
    """Print the date and the table's head."""
    print_date()
    print("| what | wall ms, median [95 %] | times faster than torch's list |")
    print("|---|---|---|")


if __name__ == "__main__":
    main()
