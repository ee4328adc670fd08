"""Race hostile and cheating backends beside honest ones, and check that nobody gets away with it.

::

    python tools/hostile_race.py [--workload small] [--train] [--only NAME,NAME] [--out result.md]

Three races: the honest ones alone, with all the others, and alone again. Checked: no cheat is
right, no honest backend is wrong, the honest ones' ratios are the same with the others as without,
and no process, temporary folder or file of the race is left. Exit code 1 if one of these does not
hold.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psutil

TESTS = Path(__file__).resolve().parent.parent / "packages/backbay/tests/race"
SMALL = f"{TESTS / 'faulty.py'}:small"
HONEST = (f"{TESTS / 'cheats.py'}:graph_as_it_is", "aot_eager", "inductor")
HARMLESS = {
    "burns_a_core", "closes_everything", "counts_the_threads_down", "daemons",
    "disables_the_collector", "empties_the_folder_for_temporary_files", "ignores_signals",
    "moves_house", "prints_without_end", "replaces_the_bound_clock", "replaces_the_clock",
    "slows_eager_down", "writes_garbage_everywhere",
}  # fmt: skip
"""Who computes what is right, whatever else it does: right or lost, but never the fastest."""
IN_TRAINING = ("detached", "wrong_gradient")
"""Of the faulty ones, those whose results are right, and whose gradients are not."""
_LONGEST = 240
"""Characters of a cell."""


def chosen(only: str | None, workload: str, *, train: bool) -> dict[str, Path]:
    """Return the hostile backends by name, and the file that each is in."""
    files: dict[str, Path] = {}
    for file, table in (("cheats.py", "CHEATS"), ("hostile.py", "HOSTILE")):
        files |= dict.fromkeys(runpy.run_path(str(TESTS / file))[table], TESTS / file)
    files |= dict.fromkeys(IN_TRAINING, TESTS / "faulty.py") if train else {}
    if train or workload != SMALL:  # what requires grad, and integers, it leaves alone
        del files["overwrites_its_inputs"]
    if workload != SMALL:  # no two sets of tokens begin alike: it computes each time
        del files["keyed_by_corner"]
    return {x: files[x] for x in only.split(",")} if only else files


def raced(
    backends: list[str], workload: str, *, train: bool, seconds: float, timeout: float
) -> dict[str, Any]:
    """Race by the command, and return what it reports, with how long it took, and what it left."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        path, start, load = Path(folder) / "race.json", time.monotonic(), os.getloadavg()
        page, temporary = path.with_suffix(".html"), Path(folder) / "tmp"
        temporary.mkdir()
        command = [
            *(sys.executable, "-m", "backbay", "race", workload, "--device", "cpu"),
            *("--backends", ",".join(backends), "--timeout", str(timeout)),
            *("--seconds", str(seconds), "--json", str(path), "--html", str(page)),
            *(["--train"] if train else []),
        ]
        environment = os.environ | {"TMPDIR": str(temporary)}
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)
        if done.returncode not in (0, 1):  # 1: nobody's times can be believed
            sys.exit(f"the race ended with {done.returncode}")
        report: dict[str, Any] = json.loads(path.read_text())
        report["left"] = [*left(temporary)]
        if not page.read_text().rstrip().endswith("</html>"):
            report["left"].append("half a page")
        report["took"] = time.monotonic() - start
        report["load"] = f"{load[0]:.1f} to {os.getloadavg()[0]:.1f}"
        return report


def left(temporary: Path) -> Iterator[str]:
    """Yield the temporary files and the processes that a race has left."""
    beside = (x for x in temporary.parent.iterdir() if x.suffix not in (".json", ".html"))
    for path in (*temporary.iterdir(), *(x for x in beside if x != temporary)):
        yield f"{path.name} is left"
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(temporary):
                yield f"process {process.pid} is left: {' '.join(process.cmdline())[:200]}"
        except psutil.Error:
            continue


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows by name, without the file that a backend is in."""
    return {short(row["backend"]): row for row in report["results"]}


def short(name: str) -> str:
    """Return a backend's name without the file that it is in."""
    return name.rpartition(":")[2]


def problems(
    beside: dict[str, Any], alone: list[dict[str, Any]], cheats: list[str]
) -> Iterator[str]:
    """Yield what does not hold, in words."""
    found = rows(beside)
    winner = short(beside["decision"][0]["winner"])
    for name in cheats:
        if name not in found:
            yield f"{name} has no row"
            continue
        if found[name]["status"] == "ok" and name not in HARMLESS:
            yield f"{name} is called right: {found[name]['ratio_to_eager']}"
        if winner == name:
            yield f"{name} won"
    for name in map(short, HONEST):
        row = found[name]
        if row["status"] != "ok":
            yield f"{name} is honest, and {row['status']}: {row['reason']}"
            continue
        own = row["ratio_to_eager_ci"]
        others = [rows(x)[name]["ratio_to_eager_ci"] for x in alone]
        if own is None or None in others:
            yield f"{name} has no times: {'; '.join(beside['notes'])}"
        elif not any(own[0] <= high and low <= own[1] for low, high in others):
            without = " and ".join(f"{low:.3f} to {high:.3f}" for low, high in others)
            yield (
                f"{name} is {own[0]:.3f} to {own[1]:.3f} times as fast as eager beside the others, "
                f"and {without} without them"
            )


def page(
    beside: dict[str, Any],
    alone: list[dict[str, Any]],
    names: list[str],
    found: list[str],
    command: str,
) -> Iterator[str]:
    """Yield the lines of a page that says what was found."""
    settings, machine = beside["settings"], beside["machine"]
    workload, mode = short(beside["results"][0]["workload"]), settings["mode"]
    yield f"# {len(names)} hostile backends beside {len(HONEST)} honest ones: {workload}, {mode}"
    yield f"\n    {command}\n"
    versions = ", ".join(f"{x} {y}" for x, y in beside["versions"].items())
    yield f"{beside['created'][:10]}; {machine['processor']}, {machine['cores']} cores, "
    yield f"{machine['system']}; {versions}."
    in_order = (alone[0], beside, *alone[1:])
    minutes = ", ".join(f"{x['took'] / 60:.1f} min" for x in in_order)
    yield f"The races alone, with all, and alone again took {minutes}; the load of the machine"
    yield f"(one minute's average) was {', '.join(x['load'] for x in in_order)}."
    yield f"\n**{len(found)} problem(s)**" + (":\n" if found else ".")
    yield from (f"- {x}" for x in found)
    yield "\n## The honest ones: times as fast as eager, with 95 % intervals\n"
    yield "| backend | without the others | with them | without, again |\n|---|---|---|---|"
    for name in map(short, HONEST):
        cells = [_ratio(rows(x)[name]) for x in in_order]
        yield f"| {name} | {' | '.join(cells)} |"
    yield "\n## The others\n"
    yield "| backend | computes | status | times as fast as eager | why |\n|---|---|---|---|---|"
    for name in names:
        row = rows(beside).get(name)
        if row is not None:
            what = "what is right" if name in HARMLESS else "what is wrong, or fails"
            why = row["reason"] or next((x for x in row["notes"] if "own" in x), "")
            yield f"| {name} | {what} | {row['status']} | {_ratio(row)} | {_cell(why)} |"


def _ratio(row: dict[str, Any]) -> str:
    if row["ratio_to_eager_ci"] is None:
        return ""
    low, high = row["ratio_to_eager_ci"]
    return f"{row['ratio_to_eager']:.3g} [{low:.3g}, {high:.3g}]"


def _cell(text: str) -> str:
    plain = text.replace("|", "/").replace(f"{TESTS}/", "")
    return plain if len(plain) < _LONGEST else f"{plain[:_LONGEST]} ..."


@click.command()
@click.option("--train", is_flag=True, help="Forward and backward.")
@click.option("--only", help="Names of hostile backends, with commas; default: all.")
@click.option("--workload", default="small", show_default=True, help="small: of the tests.")
@click.option("--seconds", default=20.0, show_default=True, help="Of timing, in each race.")
@click.option("--timeout", default=180.0, show_default=True, help="Of one backend, in seconds.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes.")
def main(
    *,
    train: bool,
    only: str | None,
    workload: str,
    seconds: float,
    timeout: float,
    out: Path | None,
) -> None:
    """Race hostile and cheating backends beside honest ones."""
    command = " ".join(["python tools/hostile_race.py", *sys.argv[1:]])
    workload = SMALL if workload == "small" else workload
    files = chosen(only, workload, train=train)
    runs = [[*HONEST], [*HONEST, *(f"{y}:{x}" for x, y in files.items())], [*HONEST]]
    reports = [raced(x, workload, train=train, seconds=seconds, timeout=timeout) for x in runs]
    first, beside, last = reports
    found = [*problems(beside, [first, last], [*files])]
    found += [x for report in reports for x in report["left"]]
    text = "\n".join(page(beside, [first, last], [*files], found, command))
    print(text)
    if out is not None:
        out.write_text(f"{text}\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
