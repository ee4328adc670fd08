"""CUDA graphs by Backbay beside torch's own: whole steps, in turns, in one process.

    python benchmarks/cuda_graphs.py [CASE ...] [--arms inductor,...]
        [--seconds 4] [--until 480] [--out FILE]

A case is ``MODEL,BATCH,infer|train``, a model of timm with channels last, or
``WORKLOAD,infer|train``, one of Backbay's workloads: ``hf:bert@tiny,infer``. Each is in bfloat16
with random weights. A row has each arm's time of a step (forward, or forward and backward), medians
over rounds in which the arms took turns, with 95 % intervals; how long its kernels take by
themselves, by torch's profiler over three further steps; and what is saved of what
``reduce-overhead`` saves. Backbay replays inference alone: rows of training say what is left.
Nothing new begins after ``--until`` seconds.
"""

import argparse
import datetime as dt
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from backbay.causes import one_line
from backbay.proof import Step
from backbay.timing import clock, rounds, stats
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
ARMS = (
    "inductor",
    "inductor:reduce-overhead",
    "backbay",
    "backbay:graphs",
    "backbay:graphs-auto",
)
WARM = 6
"""Steps before anything is timed: what is replayed is recorded by then."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing, a case")
    parser.add_argument("--until", type=float, default=480.0, help="seconds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch._dynamo.config.recompile_limit = 256  # noqa: SLF001 (all arms compile the same code)
    lines = list(head(given.arms.split(",")))
    begun = time.monotonic()
    for case in given.cases:
        if time.monotonic() - begun > given.until:
            lines.append(f"| {case} | not reached |")
            continue
        lines.append(row(case, given.arms.split(","), given.seconds))
        print(lines[-1], flush=True)
        if given.out:  # what is done is kept, whatever becomes of the rest
            given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def head(names: Sequence[str]) -> Iterator[str]:
    """Yield what was measured where, and the table's head."""
    known = ", ".join(f"{k} {v}" for k, v in versions("timm").items())
    today, where = dt.datetime.now(dt.UTC).date(), device_name(torch.device("cuda"))
    yield f"{today}; {where}; {known}; bfloat16."
    yield ""
    columns = [
        "model, batch",
        *(f"{x}, ms" for x in names),
        *(f"kernels of {x}, ms, and launches" for x in names),
        *(f"inductor / {x}" for x in names if x != arms.INDUCTOR),
        "saved, of what reduce-overhead saves",
        "pools, MiB",
    ]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"


def row(case: str, names: Sequence[str], seconds: float) -> str:
    """Return the row of one case."""
    model, *batch, what = case.split(",")
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    device = torch.device("cuda")
    train = what == "train"
    if batch:
        with device:
            workload = vision(model, int(batch[0]), channels_last=True, train=train, size="full")
    else:
        workload = load(model, seed=0, dtype=torch.bfloat16, device=device, train=train)
    one = Step(workload, train=train, seed=0)
    steps: dict[str, Callable[[], Any]] = {}
    for name in names:
        call = arms.compiled(workload.model, name)
        try:
            for _ in range(WARM):
                one(call)
        except Exception as error:  # noqa: BLE001 (a backend may raise anything)
            print(f"{case}, {name}: {one_line(error)}", flush=True)
            continue
        steps[name] = lambda call=call: one(call)  # type: ignore[misc] # a default is no argument
    samples = timed(steps, seconds, device)
    busy = {name: "{:.3f} in {}".format(*kernels(step)) for name, step in steps.items()}
    pools = pool_bytes(torch.cuda.current_device()) >> 20
    cells = [
        *(said(*stats.median(samples[x])) if x in samples else "failed" for x in names),
        *(busy.get(x, "") for x in names),
        *(
            said(*stats.ratio(samples[arms.INDUCTOR], samples[x])) if x in samples else ""
            for x in names
            if x != arms.INDUCTOR
        ),
        saved(samples),
        str(pools),
    ]
    return f"| {case.replace(',', ', ')} | {' | '.join(cells)} |"


def timed(
    steps: Mapping[str, Callable[[], Any]], seconds: float, device: torch.device
) -> dict[str, list[float]]:
    """Return milliseconds a step, one sample a round, by arm."""
    step_s = {name: clock.seconds(step, 2, device) / 2 for name, step in steps.items()}
    plan = rounds.plan(step_s, seconds)

    def block(name: str) -> float:
        return clock.block(
            steps[name], warmups=rounds.WARMUPS, calls=plan.calls[name], device=device
        )

    taken = list(rounds.in_turns(steps, plan, block))
    return {name: [x[name] for x in taken] for name in steps}


def kernels(step: Callable[[], Any], calls: int = 3) -> tuple[float, int]:
    """Return the milliseconds that a step's kernels take by themselves, and how many there are."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    events = [x for x in profiled.key_averages() if x.self_device_time_total > 0]
    spent = sum(x.self_device_time_total for x in events)
    return spent / 1e3 / calls, sum(x.count for x in events) // calls


def saved(samples: Mapping[str, Sequence[float]]) -> str:
    """Return what ours saves of the time that torch's own CUDA graphs save."""
    names = ("backbay", "backbay:graphs", arms.INDUCTOR, "inductor:reduce-overhead")
    if not all(x in samples for x in names):
        return ""
    ours, graphs, inductor, torchs = (stats.median(samples[x])[0] for x in names)
    if inductor <= 1.05 * torchs:
        return "under 5 %"
    return f"{(ours - graphs) / (inductor - torchs):.2f}"


def said(value: float, interval: tuple[float, float]) -> str:
    """Write a value with its interval."""
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


if __name__ == "__main__":
    main()
