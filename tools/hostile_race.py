"""Race hostile and cheating backends beside honest ones, and check that nobody gets away with it.

::

    python tools/hostile_race.py [--train] [--only NAME,NAME] [--json report.json]

Checked: no cheat is right, no honest backend is wrong, the honest ones' ratios are the same as in
a race without the others, and no process, temporary folder or file of the race is left. Exit code
1 if one of these does not hold.
"""

import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import psutil

HERE = Path(__file__).resolve().parent.parent / "packages/backbay/tests/race"
CHEATS, HOSTILE = HERE / "cheats.py", HERE / "hostile.py"
HONEST = (f"{CHEATS}:graph_as_it_is", "aot_eager", "inductor")
HARMLESS = {
    "burns_a_core", "closes_everything", "counts_the_threads_down", "daemons",
    "disables_the_collector", "empties_the_folder_for_temporary_files", "ignores_signals",
    "moves_house", "prints_without_end", "replaces_the_bound_clock", "replaces_the_clock",
    "slows_eager_down", "writes_garbage_everywhere",
}  # fmt: skip
"""Who computes what is right, whatever else it does: right or lost, but never the fastest."""
_MARK = "backbay-hostile-daemon"


def raced(backends: list[str], workload: str, folder: Path, *, train: bool) -> dict[str, Any]:
    """Race by the command, and return what it reports."""
    path = folder / "race.json"
    command = [
        *(sys.executable, "-m", "backbay", "race", workload, "--device", "cpu"),
        *("--backends", ",".join(backends), "--timeout", "180", "--seconds", "20"),
        *("--json", str(path), *(["--train"] if train else [])),
    ]
    done = subprocess.run(command, check=False)
    if done.returncode not in (0, 1):  # 1: nobody's times can be believed
        sys.exit(f"the race ended with {done.returncode}")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows by name, without the file that a backend is in."""
    return {row["backend"].rpartition(":")[2]: row for row in report["results"]}


def left() -> set[str]:
    """Return the processes and temporary files that a race may leave."""
    folder = Path(tempfile.gettempdir())
    files = {str(x) for x in folder.glob("backbay-*")}
    daemons = {
        f"process {x.pid}"
        for x in psutil.process_iter(["cmdline"])
        if any(_MARK in word for word in x.info["cmdline"] or ())
    }
    return files | daemons


def problems(report: dict[str, Any], alone: dict[str, Any], cheats: list[str]) -> list[str]:
    """Return what does not hold, in words."""
    found, before = rows(report), rows(alone)
    wrong = []
    for name in cheats:
        row = found[name]
        if row["status"] == "ok" and name not in HARMLESS:
            wrong.append(f"{name} is called right: {row['ratio_to_eager']}")
        if report["decision"][0]["winner"].endswith(f":{name}"):
            wrong.append(f"{name} won")
    for name in (x.rpartition(":")[2] for x in HONEST):
        row = found[name]
        if row["status"] != "ok":
            wrong.append(f"{name} is honest, and {row['status']}: {row['reason']}")
            continue
        if row["ratio_to_eager_ci"] is None or before[name]["ratio_to_eager_ci"] is None:
            wrong.append(f"{name} has no times: {'; '.join(report['notes'] + alone['notes'])}")
            continue
        (low, high), (was_low, was_high) = (
            row["ratio_to_eager_ci"],
            before[name]["ratio_to_eager_ci"],
        )
        if high < was_low or was_high < low:
            wrong.append(
                f"{name} is {low:.3f} to {high:.3f} times as fast as eager beside the others, "
                f"and {was_low:.3f} to {was_high:.3f} without them"
            )
    return wrong


@click.command()
@click.option("--train", is_flag=True, help="Forward and backward.")
@click.option("--only", help="Names of hostile backends, with commas; default: all.")
@click.option("--workload", default="decoder@tiny", show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where the report goes.")
def main(train: bool, only: str | None, workload: str, path: Path | None) -> None:
    """Race hostile and cheating backends beside honest ones."""
    files = dict.fromkeys(runpy.run_path(str(CHEATS))["CHEATS"], CHEATS)
    files |= dict.fromkeys(runpy.run_path(str(HOSTILE))["HOSTILE"], HOSTILE)
    names = only.split(",") if only else list(files)
    before = left()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        alone = raced([*HONEST], workload, Path(folder), train=train)
        hostile = [f"{files[x]}:{x}" for x in names]
        report = raced([*HONEST, *hostile], workload, Path(folder), train=train)
    if path is not None:
        path.write_text(json.dumps({"alone": alone, "beside": report}, indent=1))
    found = problems(report, alone, names) + [f"{x} is left" for x in sorted(left() - before)]
    print(f"{len(names)} hostile backends beside {len(HONEST)}: {len(found)} problem(s)")
    for problem in found:
        print(f"- {problem}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
