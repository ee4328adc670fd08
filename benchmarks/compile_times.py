"""How long a model's first call takes: ``backend="backbay"`` beside Inductor, cold and warm.

    python benchmarks/compile_times.py --state FILE [NAME ...] [--device cuda] [--size full]
        [--rounds 5] [--warm 3] [--until SECONDS] [--out FILE] [--stacks FOLDER]

Each sample is a fresh process, which builds a model of ``speed/model_cases``, loads the device's
libraries, compiles a small function so that toolchain and imports are paid for, and then times the
model's first step. Cold is with empty caches, warm the processes after it, with what the first one
left. Arms take turns, each with caches of its own. Samples go to the state file as they come, so a
run that was stopped goes on where it was, but for the round that it was stopped in.

The model is not called in eager before, as nobody does who compiles it: that would build cuDNN's
plans for convolutions and attention as eager and Inductor call them, and leave those of backbay's
calls to the first step. Such plans, and all else that is done when compiled code first runs, are
in the time of the first call. The time of compilation is without them: Dynamo's and the backend's,
forward and backward, as torch itself counts it (``torch._dynamo.utils.calculate_time_spent``).
Python's garbage is collected before: how much there is depends on what was imported, and when.

A row of the table, which is of all in the file, has the medians, the ratio with its 95 % interval,
whether every warm process found every graph in the caches of AOTAutograd and of Inductor, how many
kernels a process timed in several configurations, which a warm one should have found, too, how long
the second call took, in which is found out whether CUDA graphs pay, and the ratio of both calls.

``--stacks`` writes where the time goes that Dynamo gives the backend, a file for each sample, and
makes all take longer: such samples belong in a state file of their own.
"""

import argparse
import contextlib
import datetime as dt
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from backbay.timing import stats
from speed import arms
from speed.stacks import sampled
from speed.surroundings import device_of, versions

NAMES = ("llama_1b_4l.prefill_4x2k", "bert.infer", "gpt2.train", "resnet50.infer")
ARMS = (arms.INDUCTOR, arms.OURS)
COMPILER = "call_user_compiler"
"""Where Dynamo calls a backend."""
BARS = {"cold": 1.3, "warm": 1.05}
COLD, WARM = BARS


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One first call."""

    name: str
    arm: str
    when: str
    """Cold or warm."""
    seconds: float
    """Until the first step is done."""
    compiling: float
    """Seconds of them in which was compiled."""
    hits: int
    """Graphs that AOTAutograd's cache had."""
    misses: int
    """Graphs that a cache had not, or was not asked for."""
    tuned: int | None = None
    """Triton's kernels that were timed in several configurations; None if nobody counted."""
    second: float | None = None
    """Seconds of the second step, which may find out whether CUDA graphs pay."""
    where: str = ""
    """Day, machine and versions; empty if nobody noted them."""


def main() -> int:
    """Measure and print; 1 where a bar does not hold."""
    given = parsed()
    if given.child:
        arm, when = given.child
        said = first_call(given.names[0], arm, when, given)
        print(msgspec.json.encode(said).decode())
        return 0
    measured(given)
    samples = [x for x in read(given.state) if x.name in given.names]
    rows = [row(name, when, samples) for name in given.names for when in BARS]
    text = "\n".join((header(samples), *(x for x, _ in rows), ""))
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    return int(any(missed for _, missed in rows))


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--state", type=Path, required=True, help="file of the samples")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="warm samples for each cold one")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin none later, in s")
    parser.add_argument("--stacks", type=Path, help="folder for samples of stacks")
    parser.add_argument("--child", nargs=2, metavar=("ARM", "WHEN"), help=argparse.SUPPRESS)
    return parser.parse_args()


def read(state: Path) -> list[Sample]:
    """Return what was measured so far."""
    if not state.exists():
        return []
    return [msgspec.json.decode(x, type=Sample) for x in state.read_bytes().splitlines()]


def measured(given: argparse.Namespace) -> None:
    """Take the samples that are missing, round by round, until the time is up."""
    begun, known = time.monotonic(), Counter((x.name, x.arm, x.when) for x in read(given.state))
    for number in range(given.rounds):
        for name in given.names:
            if all(known[name, arm, COLD] > number for arm in ARMS):
                continue
            if time.monotonic() - begun > given.until:
                print("time is up: call again to go on", file=sys.stderr)
                return
            for found in turns(name, given):
                with given.state.open("ab") as file:
                    file.writelines(msgspec.json.encode(x) + b"\n" for x in found)


def turns(name: str, given: argparse.Namespace) -> Iterator[list[Sample]]:
    """Time a model's first calls, cold and then warm, both arms in each turn."""
    with tempfile.TemporaryDirectory(prefix="backbay-compile-") as folder:
        for turn, when in enumerate((COLD, *(WARM,) * given.warm)):
            order = ARMS if turn % 2 == 0 else ARMS[::-1]
            yield [in_child(name, x, when, str(Path(folder) / x), given) for x in order]


def in_child(name: str, arm: str, when: str, folder: str, given: argparse.Namespace) -> Sample:
    """Time one first call in a process of its own."""
    command = [sys.executable, __file__, name, "--child", arm, when, "--state", str(given.state)]
    command += ["--device", given.device, "--size", given.size]
    if given.stacks:
        command += ["--stacks", str(given.stacks)]
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
        "BACKBAY_CACHE": str(Path(folder) / "backbay"),
    }
    done = subprocess.run(
        command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Sample)


def first_call(name: str, arm: str, when: str, given: argparse.Namespace) -> Sample:
    """Be the child: build, warm the toolchain up, and time the first step."""
    import torch  # noqa: PLC0415 (the parent needs none)
    from torch._dynamo.utils import calculate_time_spent, counters  # noqa: PLC0415

    from backbay.proof import Step  # noqa: PLC0415
    from backbay.timing.device import synchronize  # noqa: PLC0415
    from speed.model_cases import built, case  # noqa: PLC0415

    model, place = case(name), torch.device(given.device)
    workload = built(model, given.size, device=place, seed=0)
    step = Step(workload, train=model.train, seed=0)
    load_libraries(place)
    arms.warm_up(arm, given.device, train=model.train)
    counters.clear()
    call = arms.compiled(workload.model, arm)
    step.clear_gradients()
    gc.collect()  # 0.3 s, which would fall into the step of one arm and not of the other
    synchronize(place)
    compiled_before = calculate_time_spent()["total_wall_time"]
    file = given.stacks and new_file(given.stacks, f"{name}-{arm}-{when}")
    with tunings() as tuned, written(file):
        start = time.perf_counter()
        step(call)
        synchronize(place)
        seconds = time.perf_counter() - start
    start = time.perf_counter()
    step(call)
    synchronize(place)
    second = time.perf_counter() - start
    graphs, aot = counters["inductor"], counters["aot_autograd"]
    missed = [aot["autograd_cache_miss"], aot["autograd_cache_bypass"]]
    missed += [graphs["fxgraph_cache_miss"], graphs["fxgraph_cache_bypass"]]
    return Sample(
        name=name,
        arm=arm,
        when=when,
        seconds=seconds,
        compiling=calculate_time_spent()["total_wall_time"] - compiled_before,
        hits=aot["autograd_cache_hit"],
        misses=sum(missed),
        tuned=len(tuned),
        second=second,
        where=surroundings(given.device, given.size),
    )


def new_file(folder: Path, name: str) -> Path:
    """Return a file that is not there yet, in a folder that is."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{len([*folder.glob(f'{name}-*')])}.txt"


@contextlib.contextmanager
def written(file: Path | None) -> Iterator[None]:
    """Write where the time of a block goes into a file, if one is given."""
    if file is None:
        yield
        return
    with sampled(COMPILER) as stacks:
        yield
    file.write_text(stacks.text(), encoding="utf-8")


@contextlib.contextmanager
def tunings() -> Iterator[list[str]]:
    """Return a list that gets the name of each of Triton's kernels that Inductor times."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415

    names: list[str] = []
    real: Any = CachingAutotuner.benchmark_all_configs

    def noted(tuner: Any, *arguments: Any, **keywords: Any) -> Any:
        names.append(getattr(tuner.fn, "__name__", "?"))
        return real(tuner, *arguments, **keywords)

    with mock.patch.object(CachingAutotuner, "benchmark_all_configs", noted):
        yield names


def load_libraries(device: Any) -> None:
    """Have the libraries of a device loaded, by calls of sizes that no model has."""
    import torch  # noqa: PLC0415

    if device.type != "cuda":
        return
    x = torch.randn(2, 8, 16, 16, device=device, dtype=torch.bfloat16)
    torch.conv2d(x, x[:, :, :3, :3].contiguous())
    torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    (x @ x).sum().item()


def surroundings(device: str, size: str) -> str:
    """Return when, where and with what this was measured."""
    today = dt.datetime.now(dt.UTC).date()
    names = ", ".join(f"{k} {v}" for k, v in versions("transformers", "timm").items())
    return f"{today}; {device_of(device)}, size {size}, {names}"


def header(samples: Sequence[Sample]) -> str:
    """Return where the samples are from, and name the columns."""
    return (
        f"{' | '.join(dict.fromkeys(x.where for x in samples))}. "
        "Ratios are backbay's time over Inductor's.\n\n"
        "| model | caches | samples | compiled in, inductor s | backbay s | ratio "
        "| first call, inductor s | backbay s | ratio | all found "
        "| kernels tuned, inductor, backbay | second call, inductor, backbay, s "
        "| both calls, ratio |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )


def row(name: str, when: str, samples: Sequence[Sample]) -> tuple[str, bool]:
    """Return a row, and whether its bar is missed for certain."""
    by_arm = {
        arm: [x for x in samples if (x.name, x.arm, x.when) == (name, arm, when)] for arm in ARMS
    }
    count = min(map(len, by_arm.values()))
    if count == 0:
        return f"| {name} | {when} | 0 | | | not run | | | | | | | |", False
    both = {arm: found[:count] for arm, found in by_arm.items()}
    compiling, low = _compared({arm: [x.compiling for x in both[arm]] for arm in ARMS})
    first_calls, _ = _compared({arm: [x.seconds for x in both[arm]] for arm in ARMS})
    not_found = [x for x in by_arm[arms.OURS] if when == WARM and (x.misses or not x.hits)]
    found_all = "" if when == COLD else f"no: {not_found[-1]}" if not_found else "yes"
    missed = low > BARS[when] or bool(not_found)
    further = (found_all, _tuned(both), _second(both), _until_decided(both))
    columns = (name, when, str(count), *compiling, *first_calls, *further)
    return f"| {' | '.join(columns)} |", missed


def _tuned(both: Mapping[str, Sequence[Sample]]) -> str:
    """Return the most that a process of each arm tuned."""
    counted = [[x.tuned for x in both[arm] if x.tuned is not None] for arm in ARMS]
    return ", ".join(str(max(x)) if x else "-" for x in counted)


def _second(both: Mapping[str, Sequence[Sample]]) -> str:
    """Return the medians of each arm's second calls."""
    taken = [[x.second for x in both[arm] if x.second is not None] for arm in ARMS]
    return ", ".join(f"{stats.median(x)[0]:.3f}" if x else "-" for x in taken)


def _until_decided(both: Mapping[str, Sequence[Sample]]) -> str:
    """Return the ratio of the time until CUDA graphs are decided on: of the first two calls."""
    if any(x.second is None for arm in ARMS for x in both[arm]):
        return "-"
    taken = {arm: [x.seconds + (x.second or 0.0) for x in both[arm]] for arm in ARMS}
    return _compared(taken)[0][-1]


def _compared(both: Mapping[str, Sequence[float]]) -> tuple[list[str], float]:
    """Return medians and their ratio as texts, and the lower end of the ratio's interval."""
    texts = []
    for values in both.values():
        median, (low, high) = stats.median(values)
        texts.append(f"{median:.2f} [{low:.2f}, {high:.2f}]")
    ratio, (low, high) = stats.ratio(both[arms.OURS], both[arms.INDUCTOR])
    return [*texts, f"{ratio:.3f} [{low:.3f}, {high:.3f}]"], low


if __name__ == "__main__":
    sys.exit(main())
