"""Put backends through the whole suite, level by level, and keep their statements.

    python benchmarks/conformance.py [BACKEND ...] --state FOLDER --out FOLDER
        [--profile full] [--device cpu] [--levels 0-3] [--workers 2] [--until SECONDS]
        [--again PATTERN ...]

A level of a backend (of ``quick``, all of them at once) that is in the state folder already is not
run again, so what was stopped goes on where it was; no new one is begun after ``--until``. What the
suite knows of is read anew: a line that explains a failure needs no new run. Cases that fit
``--again`` are run again and take the place of what is in the state folder; the statement says so,
and on which machine. Compiler caches are in the state folder too.

Writes for each backend whose levels are all there NAME.txt and NAME.json (without passes), and one
page of all that are in the output folder. Exit code 1: something is held against a backend.
"""

import argparse
import fnmatch
import sys
import time
from pathlib import Path

import msgspec

from backbay_conformance import LEVELS, Statement, conform
from backbay_conformance.scoreboard import read, write_page
from backbay_conformance.statement import text, verdict
from backbay_conformance.suite import numbered
from merging import brief, explained_anew, merged, renewed

REFERENCES = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
OURS = (
    "backbay",
    "backbay_print",
    "backbay_report",
    "backbay_silu",
    "backbay_fold",
    "backbay_gelu",
)


def main() -> int:
    """Run what is missing, and write what is whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backends", nargs="*", default=(*REFERENCES, *OURS))
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profile", choices=("quick", "full"), default="full")
    parser.add_argument("--device")
    parser.add_argument("--levels", default=f"0-{len(LEVELS) - 1}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--again", nargs="+", default=())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    start, levels = time.monotonic(), numbered(arguments.levels.split(","))
    runs = [levels] if arguments.profile == "quick" else [[x] for x in levels]
    right = True
    for backend in arguments.backends:
        parts = []
        for some in runs:
            name = "-".join(map(str, some))
            path = arguments.state / arguments.profile / backend / f"{name}.json"
            if not path.exists() and time.monotonic() - start < arguments.until:
                run(backend, some, path, arguments)
            if path.exists() and arguments.again:
                run_again(backend, path, arguments)
            if path.exists():
                parts.append(explained_anew(read(path)))
        if len(parts) == len(runs):
            right &= write(merged(parts, profile=arguments.profile), arguments.out)
        else:
            print(f"{backend}: {len(parts)} of {len(runs)} runs were made")
            right = False
    statements = [read(x) for x in sorted(arguments.out.glob("*.json"))]
    order = {name: number for number, name in enumerate((*REFERENCES, *OURS))}
    statements.sort(key=lambda x: (order.get(x.backend, len(order)), x.backend))
    write_page(statements, arguments.out / "scoreboard.html")
    return 0 if right else 1


def run(backend: str, levels: list[int], path: Path, arguments: argparse.Namespace) -> None:
    """Run some levels and keep their statement."""
    caches = arguments.state / "caches"
    caches.mkdir(parents=True, exist_ok=True)
    statement = conform(
        backend,
        profile=arguments.profile,
        levels=levels,
        device=arguments.device,
        seed=arguments.seed,
        workers=arguments.workers,
        caches=caches,
        tell=lambda x: print(f"{x.status}  {x.id}: {x.reason}") if x.failed else None,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(statement))
    names = ", ".join(map(str, levels))
    print(f"{backend}, levels {names}: {statement.seconds:.0f} s", flush=True)


def run_again(backend: str, path: Path, arguments: argparse.Namespace) -> None:
    """Run some cases of a kept statement again, and put what came of them in their places."""
    kept = read(path)
    fitting = [x.id for x in kept.results if any(fnmatch.fnmatch(x.id, y) for y in arguments.again)]
    if not fitting:
        return
    levels = [x.level for x in kept.levels]
    later = conform(
        backend, levels=levels, only=fitting, device=arguments.device, workers=arguments.workers
    )
    path.write_bytes(msgspec.json.encode(renewed(kept, later)))
    print(f"{backend}: {len(fitting)} cases were run again", flush=True)


def write(statement: Statement, out: Path) -> bool:
    """Write a whole statement; return whether nothing is held against the backend."""
    stem = out / statement.backend.replace(":", "_").replace("/", "_")
    document = msgspec.json.format(msgspec.json.encode(brief(statement)), indent=1)
    stem.with_suffix(".json").write_bytes(document + b"\n")
    stem.with_suffix(".txt").write_text(text(statement), encoding="utf-8")
    print(verdict(statement), flush=True)
    return statement.passed


if __name__ == "__main__":
    sys.exit(main())
