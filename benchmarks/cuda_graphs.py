"""CUDA graphs by Backbay beside torch's own: whole steps, in turns, in one process a case.

    python benchmarks/cuda_graphs.py [CASE ...] [--arms inductor,...] [--at-once 1]
        [--turn FILE] [--seconds 4] [--until 480] [--out FILE]

A case is ``MODEL,BATCH,infer|train``, a model of timm with channels last, or
``WORKLOAD[,BATCH],infer|train``, one of Backbay's workloads or a user's: ``hf:bert@tiny,infer``.
Each is in bfloat16 with random weights. A row has, of one arm and one step (forward, or forward and
backward), medians with 95 % intervals over rounds in which the arms took turns:

- *a call*: of calls in a row;
- *waited for*: of a call that is over before the next one begins;
- *host*: until such a call returns, which is before the device is done;
- *at work*: how long the device runs kernels or copies in it, by torch's profiler, and how many.

Below each case: what is saved of what ``reduce-overhead`` saves, whether results are the same bits
as without CUDA graphs, the pools' memory, and what the compile log says of CUDA graphs. Cases
compile ``--at-once``, and are timed one by one when all have compiled, or after ``--until`` seconds
those that have.
"""

import argparse
import contextlib
import datetime as dt
import fcntl
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay import compile_log
from backbay.causes import one_line
from backbay.proof import Step, Workload
from backbay.timing import clock, kernels, rounds, stats
from backbay.timing.device import device_name
from backbay.workloads.loading import load
from backbay_optimizer.cuda_graphs.capture import pool_bytes
from speed import arms
from speed.model_cases.vision import vision
from speed.surroundings import versions

CASES = (
    "mobilenetv3_large_100,10,infer",
    "efficientnet_b0,10,infer",
    "resnet50,10,infer",
    "convnext_tiny,64,infer",
)
PLAIN, GRAPHS = f"{arms.OURS}:{arms.NO_GRAPHS}", f"{arms.OURS}:{arms.GRAPHS}"
TORCHS = f"{arms.INDUCTOR}:reduce-overhead"
ARMS = (arms.INDUCTOR, TORCHS, PLAIN, GRAPHS, arms.OURS)
WARM = 6
"""Steps before anything is timed: what is replayed is recorded by then."""
HOST_CALLS = 60
"""Of which the host's time is the median."""
Call = Callable[[], Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--at-once", type=int, default=1, help="cases that compile side by side")
    parser.add_argument("--turn", type=Path, help="a file; who has locked it is waited for")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing, a case")
    parser.add_argument("--until", type=float, default=480.0, help="seconds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = list(head())
    spawning = multiprocessing.get_context("spawn")
    with spawning.Manager() as manager:
        compiled = manager.Barrier(min(given.at_once, len(given.cases)))
        measure = partial(
            table,
            names=given.arms.split(","),
            seconds=given.seconds,
            turn=given.turn or Path(tempfile.mkdtemp()) / "turn",
            compiled=compiled,
            until=time.time() + given.until,
        )
        with ProcessPoolExecutor(given.at_once, mp_context=spawning, max_tasks_per_child=1) as pool:
            for done in as_completed([pool.submit(measure, x) for x in given.cases]):
                lines += done.result()
                print("\n".join(done.result()), flush=True)
                if given.out:  # what is done is kept, whatever becomes of the rest
                    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def head() -> Iterator[str]:
    """Yield what was measured where."""
    known = ", ".join(f"{k} {v}" for k, v in versions("timm", "transformers", "diffusers").items())
    today, where = dt.datetime.now(dt.UTC).date(), device_name(torch.device("cuda"))
    yield f"{today}; {where}; {known}; bfloat16."


def table(
    case: str,
    *,
    names: Sequence[str],
    seconds: float,
    turn: Path,
    compiled: threading.Barrier,
    until: float,
) -> list[str]:
    """Return the lines of one case.

    Args:
        case: its name.
        names: of the arms.
        seconds: of timing.
        turn: a file that is locked by whoever times.
        compiled: is waited for by all that compile side by side.
        until: when they don't wait any longer, or begin, by the clock on the wall.
    """
    if time.time() > until:
        return ["", f"`{case}` was not reached."]
    torch._dynamo.config.recompile_limit = 256  # noqa: SLF001 (all arms compile the same code)
    device = torch.device("cuda")
    try:
        one = Step(built(case, device), train=case.endswith(",train"), seed=0)
        steps, failed = warmed(one, names)
        same = same_bits(one, steps)
    except Exception as error:  # noqa: BLE001 (the other cases go on)
        return ["", f"`{case}` failed: {one_line(error)}"]
    finally:
        with contextlib.suppress(threading.BrokenBarrierError):
            compiled.wait(max(0.0, until - time.time()))
    with turn.open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        samples = timed(steps, seconds, device)
        rows = [row(name, steps, samples, device) for name in steps]
    said = dict.fromkeys(x.why for x in compile_log.records() if "CUDA graph" in x.why)
    pools = pool_bytes(torch.cuda.current_device()) >> 20
    return [
        "",
        f"`{case.replace(',', ', ')}`",
        "",
        "| arm | a call, ms | waited for, ms | host, ms | at work, ms | inductor / this |",
        "|---|---|---|---|---|---|",
        *rows,
        *(f"| {name} | failed: {why} |" for name, why in failed.items()),
        "",
        f"- saved, of what `reduce-overhead` saves: {saved(samples)}",
        f"- the same bits as without CUDA graphs: {same}; pools: {pools} MiB",
        *(f"- {x}" for x in said),
    ]


def built(case: str, device: torch.device) -> Workload:
    """Return the model and inputs of a case."""
    model, *batch, what = case.split(",")
    train, rows = what == "train", int(batch[0]) if batch else None
    if ":" in model:
        return load(model, seed=0, dtype=torch.bfloat16, device=device, train=train, batch=rows)
    assert rows is not None, f"{case}: a model of timm has a batch"
    with device:
        made = vision(model, rows, channels_last=True, train=train, size="full")
    made.model.train(train)
    return made


def warmed(one: Step, names: Sequence[str]) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the arms that run, compiled, and what the others raised."""
    steps: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for name in names:
        call = arms.compiled(one.workload.model, name)
        try:
            for _ in range(WARM):
                one(call)
        except Exception as error:  # noqa: BLE001 (a backend may raise anything)
            failed[name] = one_line(error)
            continue
        steps[name] = partial(one, call)
    return steps, failed


def same_bits(one: Step, steps: Mapping[str, Call]) -> str:
    """Return whether ours gives the same bits with and without CUDA graphs, for several inputs."""
    if PLAIN not in steps or GRAPHS not in steps:
        return "not asked"
    floating = [x for _, x in one.inputs if x.is_floating_point()]
    before, equal, certain = [x.detach().clone() for x in floating], True, True
    for _ in range(3):
        first, again, graphed = (results(one, steps[x]) for x in (PLAIN, PLAIN, GRAPHS))
        equal &= all(map(same, first, graphed))
        certain &= all(map(same, first, again))
        with torch.no_grad():
            for x in floating:
                x.mul_(0.75)
    with torch.no_grad():
        for x, y in zip(floating, before, strict=True):
            x.copy_(y)
    if equal:
        return "yes"
    return "no" if certain else "no; nor are they twice without CUDA graphs"


def same(one: Any, other: Any) -> bool:
    """Whether two results are the same bits."""
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def results(one: Step, step: Call) -> list[Any]:
    """Return all that a step gives, gradients too, with the same random numbers each time."""
    torch.manual_seed(0)
    return [*pytree.tree_leaves(step()), *(x.grad for x in one.trained)]


def timed(
    steps: Mapping[str, Call], seconds: float, device: torch.device
) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds a step, one sample a round, by what is timed and by arm."""
    step_s = {name: clock.seconds(step, 2, device) / 2 for name, step in steps.items()}
    plan = rounds.plan(step_s, seconds / 2)

    def block(name: str, *, waits: bool) -> float:
        count = rounds.WARMUPS + plan.calls[name]
        given = [steps[name]] * count
        return clock.block_of(given, warmups=rounds.WARMUPS, device=device, waits=waits)[0]

    found = {}
    for what, waits in (("a call", False), ("waited for", True)):
        taken = list(rounds.in_turns(steps, plan, partial(block, waits=waits)))
        found[what] = {name: [x[name] for x in taken] for name in steps}
    found["host"] = {name: [] for name in steps}
    for _ in range(HOST_CALLS):
        for name, step in steps.items():
            step()  # whose code and guards are at hand then
            host_s, _, _ = clock.handed_over(step, device)
            found["host"][name].append(1e3 * host_s)
    return found


def row(
    name: str,
    steps: Mapping[str, Call],
    samples: Mapping[str, Mapping[str, Sequence[float]]],
    device: torch.device,
) -> str:
    """Return the row of one arm."""
    work = kernels.gpu_work(steps[name], device)
    calls = samples["a call"]
    cells = [
        f"`{name}`",
        *(said(*stats.median(samples[x][name])) for x in ("a call", "waited for", "host")),
        "" if work is None else f"{work.busy_ms:.3f} in {work.launches}",
        said(*stats.ratio(calls[arms.INDUCTOR], calls[name])) if arms.INDUCTOR in calls else "",
    ]
    return f"| {' | '.join(cells)} |"


def saved(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return what ours saves of the time that torch's own CUDA graphs save."""
    calls, names = samples["a call"], (PLAIN, GRAPHS, arms.INDUCTOR, TORCHS)
    if not all(x in calls for x in names):
        return "not asked"
    ours, graphs, inductor, torchs = (stats.median(calls[x])[0] for x in names)
    if inductor <= 1.05 * torchs:
        return "under 5 %"
    return f"{(ours - graphs) / (inductor - torchs):.2f}"


def said(value: float, interval: tuple[float, float]) -> str:
    """Write a value with its interval."""
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


if __name__ == "__main__":
    main()
