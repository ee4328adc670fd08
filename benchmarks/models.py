"""Whole models: ``backend="backbay"`` beside eager and Inductor's modes, timed side by side.

    python benchmarks/models.py --state FOLDER [--device cuda] [--only PATTERN ...]
        [--until SECONDS]
        [--arms eager,inductor,...] [--quick] [--no-proof | --only-proof] [--out FILE]
        [--problems FOLDER]

Each model (of ``speed/model_cases``, random weights) has a child process, in which every arm
compiles in an empty cache and is then timed in turns with the others. What is in the state folder
is not run again, unless the ratio of Inductor to Backbay is undecided: its 95 % interval is wider
than ±1 %. So a run that was stopped goes on where it was, and calls with other arms or models add
up. Models run in the order of --only, with --ahead those that train apart from each other, and what
was never run before what is to be decided. The table is of everything in the folder; it is printed,
and written to --out, with a JSON.

Arms: eager; inductor and backbay, each also with a mode of torch.compile's, as in
inductor:reduce-overhead, or with :tuned (coordinate descent and combo kernels) or :frozen (weights
that are constants, which no ratio to the best stock arm counts); backbay:hoist and
backbay:hoist-graphs, with parameter_hoist, beside the others' means; hand: Inductor on a model
whose constant attention masks were taken away by hand, where that is exact. --quick leaves out
autotuning and times half as long.

Backbay's default decides about CUDA graphs by itself, in the calls that each arm has before it is
timed, with nothing beside it. So it is compared with every stock arm, those with CUDA graphs among
them. How long the GPU is at work in a step is said of both defaults, by torch's profiler.

Proofs hold backbay and inductor against float64 at a smaller batch and length, with the same layers
(the table says which): at full size the float64 run costs more than everything else. What is
timed is compared with eager's results at full size, grossly; the table has that difference too.
The first call is proven, and one after CUDA graphs were decided on and recorded: *replayed* says
that at least one is in use. --only-proof times nothing.

--problems has the workloads of a folder of KernelBench's in place of these models: one a file, as
it says, in bfloat16. They have no proof, and no size but the file's.
"""

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from backbay.timing import rounds
from speed import arms, judging, model_table, requests
from speed.command import parser_of, write
from speed.conduct import Conduct, Patience, Unmeasurable
from speed.record import Entry, Run, State, Where
from speed.surroundings import device_of, versions
from speed.turns import Clients, leave_when_told, work_through

DEFAULT = (
    "eager",
    "inductor",
    "backbay",
    "hand",
    "inductor:reduce-overhead",
    "backbay:reduce-overhead",
    "inductor:max-autotune-no-cudagraphs",
)
QUICK = DEFAULT[:-1]
PROVEN = WATCHED = (arms.INDUCTOR, arms.OURS)
SECONDS = 10.0
"""Of timing, for each model and all its arms together."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the table."""
    given = parsed(arguments)
    state = State(given.state)
    where = Where(
        device=device_of(given.device), size=given.size, versions=versions("transformers", "timm")
    )
    listed = model_table.listed(given.problems)
    todo = [x for x in chosen(listed, given.only) if any(missing(x, state, given))]
    if given.ahead > 1:
        todo = mixed(todo)
    todo.sort(key=lambda x: state.read(x.name) is not None)  # a run may be cut short
    whole = work_through(
        todo,
        lambda case, clients: one(case, state, where, given, clients),
        ahead=given.ahead,
        fresh=True,
        until=given.until,
    )
    if not whole:
        print("time is up: call again to go on")
    entries = [x for case in listed if (x := state.read(case.name)) is not None]
    write(given.out, model_table.text(entries, len(listed)), model_table.document(entries))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, DEFAULT)
    parser.add_argument("--quick", action="store_true", help="no autotuning, half the timing")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--no-proof", action="store_true", help="prove nothing; the table says so")
    either.add_argument("--only-proof", action="store_true", help="time nothing")
    parser.add_argument("--problems", type=Path, help="a folder of KernelBench's, as its level3")
    parser.add_argument("--seconds", type=float, help=f"of timing a model; default {SECONDS:g}")
    parser.add_argument("--arm-seconds", type=float, default=400.0, help="that one arm may compile")
    return parser.parse_args(arguments)


def chosen(
    cases: Sequence["model_table.Listed"], patterns: Sequence[str]
) -> list["model_table.Listed"]:
    """Return the cases that patterns name, each once, in the order of the patterns."""
    named = (x for y in patterns for x in cases if fnmatch.fnmatch(x.name, y))
    return list(dict.fromkeys(named))


def missing(
    case: "model_table.Listed", state: State, given: argparse.Namespace
) -> tuple[list[str], list[str]]:
    """Return the arms to run, and those to prove."""
    named = given.arms.split(",") if given.arms else QUICK if given.quick else DEFAULT
    wanted = [x for x in named if x != arms.HAND or case.masked]
    entry = state.read(case.name)
    run: list[str] = []
    if not given.only_proof:
        run = judging.to_run(entry, wanted, above=arms.INDUCTOR, below=arms.OURS)
    if given.no_proof or not case.proof:
        return run, []
    known = entry.verdicts if entry else {}
    return run, [x for x in PROVEN if x in wanted and x not in known]


def mixed(cases: Sequence["model_table.Listed"]) -> list["model_table.Listed"]:
    """Return cases with those that train apart from each other: so many would not fit at once."""
    groups = ([x for x in cases if x.train is train] for train in (True, False))
    placed = [((n + 0.5) / len(group), x) for group in groups for n, x in enumerate(group)]
    return [case for _, case in sorted(placed, key=lambda x: x[0])]


def one(
    case: "model_table.Listed",
    state: State,
    where: Where,
    given: argparse.Namespace,
    clients: Clients,
) -> None:
    """Run what is missing of one model."""
    names, prove = missing(case, state, given)
    begun = time.monotonic()
    budget_s = given.seconds or (SECONDS / 2 if given.quick else SECONDS)

    def kept(run: Run, verdicts: dict[str, requests.Verdict] | None = None) -> Entry:
        about = conduct.prepared.about if conduct.prepared else ""
        runs = (run,) if names else ()
        fresh = Entry(name=case.name, where=where, about=about, runs=runs, verdicts=verdicts or {})
        return state.add(fresh)

    conduct = Conduct(
        clients=clients,
        prepare=requests.Prepare(
            kind="model", name=case.name, size=given.size, device=given.device
        ),
        planned=lambda step_s: rounds.plan(step_s, budget_s),
        extend=judging.Extending(arms.INDUCTOR, arms.OURS),
        patience=Patience(arm_s=given.arm_seconds),
        tell=lambda text: print(f"{case.name}: {text}", flush=True),
        keep=kept,
        shared=given.ahead > 1,
        watch=WATCHED,
    )
    try:
        run, proved = conduct.run(names, prove)
    except Unmeasurable as error:
        print(f"{case.name}: not built: {error}", flush=True)
        state.add(Entry(name=case.name, where=where, problem=str(error)))
        return
    total = kept(run, proved.verdicts)
    found = judging.ratio(total, arms.INDUCTOR, arms.OURS)
    took = time.monotonic() - begun
    print(f"{case.name}: inductor/backbay {found or 'not timed'}; {took:.0f} s", flush=True)


if __name__ == "__main__":
    leave_when_told()
    sys.exit(main())
