"""How long a model's first call takes: ``backend="backbay"`` beside Inductor, cold and warm.

    python benchmarks/compile_times.py [NAME ...] [--device cuda] [--size full] [--rounds 5]

Each sample is a fresh process, which builds a model of ``speed/model_cases``, compiles a small
function so that toolchain and imports are paid for, and then times the model's first step. Cold is
with empty caches, warm the process after it, with what the first one left. Arms take turns in each
round. A row has the medians, the ratio with its 95 % interval, and whether every warm process found
every graph in the caches of AOTAutograd and of Inductor.
"""

import argparse
import datetime as dt
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from speed import arms
from speed.surroundings import device_of, versions

from backbay.race import stats

NAMES = ("llama_1b_4l.prefill_4x2k", "bert.infer", "gpt2.train", "resnet50.infer")
ARMS = (arms.INDUCTOR, arms.OURS)
BARS = {"cold": 1.3, "warm": 1.05}


def main() -> int:
    """Measure and print; 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--until", type=float, default=float("inf"), help="no model later, in s")
    parser.add_argument("--child", nargs=2, metavar=("ARM", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(first_call(given.names[0], *given.child, given.device, given.size)))
        return 0
    begun, missed = time.monotonic(), False
    print_header(given)
    for name in given.names:
        if time.monotonic() - begun > given.until:
            print(f"| {name} | not run: time was up | | | |", flush=True)
            continue
        missed |= print_rows(name, samples_of(name, given))
    return int(missed)


def samples_of(name: str, given: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Give what each process said, by arm and by whether it was cold, round by round."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {
        (arm, when): [] for arm in ARMS for when in BARS
    }
    for number in range(given.rounds):
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            with tempfile.TemporaryDirectory(prefix="backbay-compile-") as folder:
                for when in BARS:  # the first finds the folder empty
                    found[arm, when].append(in_child(name, arm, folder, given))
    return found


def in_child(name: str, arm: str, folder: str, given: argparse.Namespace) -> dict[str, Any]:
    """Time one first call in a process of its own."""
    command = [sys.executable, __file__, name, "--child", arm, folder]
    command += ["--device", given.device, "--size", given.size]
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
        "BACKBAY_CACHE": str(Path(folder) / "backbay"),
    }
    done = subprocess.run(
        command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True
    )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def first_call(name: str, arm: str, _folder: str, device: str, size: str) -> dict[str, Any]:
    """Be the child: build, warm the toolchain up, and time the first step."""
    import torch  # noqa: PLC0415 (the parent needs none)
    from speed.model_cases import built, case  # noqa: PLC0415
    from torch._dynamo.utils import counters  # noqa: PLC0415

    from backbay.proof import Step  # noqa: PLC0415
    from backbay.race.trial import synchronize  # noqa: PLC0415

    model, place = case(name), torch.device(device)
    workload = built(model, size, device=place, seed=0)
    step = Step(workload, train=model.train, seed=0)
    step(workload.model)  # libraries of the device are loaded by eager, too
    arms.warm_up(arm, device, train=model.train)
    counters.clear()
    call = arms.compiled(workload.model, arm)
    step.clear_gradients()
    synchronize(place)
    start = time.perf_counter()
    step(call)
    synchronize(place)
    seconds = time.perf_counter() - start
    found, aot = counters["inductor"], counters["aot_autograd"]
    return {
        "seconds": seconds,
        "hits": aot["autograd_cache_hit"],
        "misses": aot["autograd_cache_miss"]
        + aot["autograd_cache_bypass"]
        + found["fxgraph_cache_miss"]
        + found["fxgraph_cache_bypass"],
    }


def print_header(given: argparse.Namespace) -> None:
    """Say when, where and with what."""
    today = dt.datetime.now(dt.UTC).date()
    names = ", ".join(f"{k} {v}" for k, v in versions("transformers", "timm").items())
    where = functools.partial(device_of, given.device)()
    print(f"{today}; {where}, size {given.size}, {names}; {given.rounds} rounds.\n")
    print("| model | caches | inductor s | backbay s | backbay / inductor | all found |")
    print("|---|---|---|---|---|---|", flush=True)


def print_rows(name: str, samples: dict[tuple[str, str], list[dict[str, Any]]]) -> bool:
    """Print a model's rows; give whether a bar is missed for certain."""
    missed = False
    for when, bar in BARS.items():
        both = {arm: [x["seconds"] for x in samples[arm, when]] for arm in ARMS}
        texts = []
        for values in both.values():
            median, (low, high) = stats.median(values)
            texts.append(f"{median:.1f} [{low:.1f}, {high:.1f}]")
        ratio, (low, high) = stats.ratio(both[arms.OURS], both[arms.INDUCTOR])
        missed |= low > bar
        asked = samples[arms.OURS, when]
        hit = all(x["hits"] and not x["misses"] for x in asked) if when == "warm" else None
        said = {None: "", True: "yes", False: f"no: {asked[-1]}"}[hit]
        missed |= hit is False
        texts += [f"{ratio:.3f} [{low:.3f}, {high:.3f}]", said]
        print(f"| {name} | {when} | {' | '.join(texts)} |")
        sys.stdout.flush()
    return missed


if __name__ == "__main__":
    sys.exit(main())
