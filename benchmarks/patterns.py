"""Single patterns: ``backend="backbay"`` beside eager, Inductor and the hardware's limits.

    python benchmarks/patterns.py --state FOLDER [--device cuda] [--only PATTERN ...]
        [--until SECONDS]
        [--arms eager,inductor,...] [--quick] [--out FILE]

Patterns (of ``speed/pattern_cases``) are pieces of models at two to four shapes each, in bfloat16:
forward, or forward and backward together where the name ends in _train. Every arm's results are
first compared with eager's in float32: a relative root-mean-square difference of more than 0.01,
and more than 1.5 times eager's own, is wrong, and is not timed. Each sample is the median of single
calls, replayed from a CUDA graph between two events, after the L2 cache was written over; arms are
timed in turns. Where no graph can be captured a row says so.

Arms: eager; inductor; inductor:tuned (coordinate descent and combo kernels);
inductor:max-autotune-no-cudagraphs; backbay; alt, what torch has ready that a rewrite could put in
its place, where there is something. --quick leaves out the two that tune, and times half as often.

The limit is the larger of bytes over the bandwidth of a device copy and FLOP over the rate of a
matmul of 8192 cubed, both measured in the same run, in bfloat16 on random data. Bytes count each
operand once, forward and again backward. FLOP are as torch counts them, without what a mask hides.

What is in the state folder is not run again, unless the ratio of Inductor to Backbay is undecided:
its 95 % interval is wider than ±1 %. The table is of everything in the folder.
"""

import argparse
import fnmatch
import sys
import time
from collections.abc import Mapping, Sequence

from backbay.session import NoReply
from backbay.timing.rounds import Plan
from speed import arms, judging, pattern_table, requests
from speed.command import parser_of, write
from speed.conduct import Conduct, Patience, Unmeasurable
from speed.record import Entry, Run, State, Where
from speed.surroundings import device_of, versions
from speed.turns import Clients, Turns, leave_when_told, work_through

DEFAULT = (
    "eager",
    "inductor",
    "backbay",
    "alt",
    "inductor:tuned",
    "inductor:max-autotune-no-cudagraphs",
)
QUICK = DEFAULT[:-2]
ROUNDS = 20
CALLS = 5
"""In a block: a sample is their median."""
_LIMITS_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the table."""
    given = parsed(arguments)
    state = State(given.state)
    where = Where(device=device_of(given.device), size=given.size, versions=versions())
    rows = pattern_table.listed(tiny=given.size == "tiny")
    todo = [
        x
        for x in rows
        if any(fnmatch.fnmatch(x.name, y) for y in given.only) and missing(x, state, given)
    ]
    limits = measured_limits(given.device) if todo else None
    whole = work_through(
        todo,
        lambda row, clients: one(row, state, where, limits, given=given, clients=clients),
        ahead=given.ahead,
        fresh=False,
        until=given.until,
    )
    if not whole:
        print("time is up: call again to go on")
    entries = [x for row in rows if (x := state.read(row.name)) is not None]
    write(given.out, pattern_table.text(entries), pattern_table.document(entries))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, DEFAULT)
    parser.add_argument("--quick", action="store_true", help="no tuning, half the rounds")
    parser.add_argument("--arm-seconds", type=float, default=300.0, help="that one arm may compile")
    return parser.parse_args(arguments)


def missing(row: "pattern_table.Listed", state: State, given: argparse.Namespace) -> list[str]:
    """Return the arms that are to be run."""
    chosen = given.arms.split(",") if given.arms else QUICK if given.quick else DEFAULT
    wanted = [x for x in chosen if x != arms.ALT or row.alternative]
    entry = state.read(row.name)
    return judging.to_run(entry, wanted, above=arms.INDUCTOR, below=arms.OURS)


def measured_limits(device: str) -> requests.Limited:
    """Measure copy and matmul.

    Raises:
        SystemExit: that failed, and nothing else would work.
    """
    clients = Clients(Turns(), fresh=True)
    try:
        reply = clients.take().ask(requests.Limits(device=device), timeout_s=_LIMITS_S)
    except NoReply as error:
        sys.exit(f"copy and matmul could not be measured on {device}: {error.reason}")
    finally:
        clients.close()
    assert isinstance(reply, requests.Limited)
    return reply


def one(
    row: "pattern_table.Listed",
    state: State,
    where: Where,
    limits: requests.Limited | None,
    *,
    given: argparse.Namespace,
    clients: Clients,
) -> None:
    """Run what is missing of one pattern at one shape."""
    begun = time.monotonic()
    pattern, _, size = row.name.partition("/")
    rounds = ROUNDS // 2 if given.quick else ROUNDS

    def planned(step_s: Mapping[str, float]) -> Plan:
        return Plan(rounds=rounds, calls=dict.fromkeys(step_s, CALLS))

    def kept(run: Run) -> Entry:
        assert conduct.prepared is not None
        return state.add(
            Entry(
                name=row.name,
                where=where,
                runs=(run,),
                bytes_moved=conduct.prepared.bytes_moved,
                flops=conduct.prepared.flops,
                limits=limits,
            )
        )

    conduct = Conduct(
        clients=clients,
        prepare=requests.Prepare(kind="pattern", name=pattern, size=size, device=given.device),
        planned=planned,
        extend=judging.Extending(arms.INDUCTOR, arms.OURS),
        patience=Patience(arm_s=given.arm_seconds),
        tell=lambda _: None,
        keep=kept,
        shared=given.ahead > 1,
    )
    try:
        run, _ = conduct.run(missing(row, state, given))
    except Unmeasurable as error:
        print(f"{row.name}: not built: {error}", flush=True)
        state.add(Entry(name=row.name, where=where, problem=str(error)))
        return
    print(f"{pattern_table.brief(kept(run))}; {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    leave_when_told()
    sys.exit(main())
