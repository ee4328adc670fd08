"""Our SiLU beside Inductor's fusion, eager's kernel and a plain copy, on a GPU.

    python benchmarks/silu_gpu.py --out FILE [--rounds 30]

In every round each contender runs once, in a new order, as a block of calls between two CUDA
events: what is printed is the median time of a call, with its 95 % bootstrap interval over rounds.
A call's time includes its share of the host's work, which is what costs at small sizes. The copy,
`copy_` into memory already there, gives the bandwidth that the others are measured by: its bytes a
second, against theirs, where a product's bytes are those that a fused kernel moves. Nothing is
evicted between calls, so that what fits in the L2 cache stays there, for every contender alike.

A second table holds our kernels alone, launched directly, by block size and warps.
"""

import argparse
import datetime as dt
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay.kit.kernels import silu as module
from backbay.registry import Environment
from backbay.reporting.machine import machine, versions
from backbay.timing import stats

SIZES = [2**16, 2**20, 2**24, 2**28]
DTYPES = [torch.bfloat16, torch.float32]
TASKS = ["forward", "backward", "silu(x) * y"]
PASSES = {"forward": 2, "backward": 3, "silu(x) * y": 3}
"""Tensors that the task must move: read and written."""

COPY = "copy"
OURS = ["ours, eager", "ours in Inductor"]
BLOCK_S = 1e-3
"""Aim for the length of a block of calls."""

HEAD = """\
| task | dtype | elements | contender | µs, median [95 %] | of the copy's bandwidth | fastest |
|---|---|---|---|---|---|---|"""
TUNING_HEAD = """\
| kernel | dtype | elements | block | warps | µs, median [95 %] |
|---|---|---|---|---|---|"""

Call = Callable[[], object]
Samples = Mapping[str, list[float]]


def main() -> None:
    """Measure, print, and write the tables to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    rows, won = [], {"all": 0, "ours": 0, "tied": 0}
    for dtype in DTYPES:
        for task in TASKS:
            for size in SIZES:
                torch._dynamo.reset()  # noqa: SLF001 (its documented home)
                samples = measure(contenders(task, dtype, size), arguments.rounds)
                rows += rows_of(task, dtype, size, samples)
                count(won, samples)
    verdict = (
        f"Ours is fastest in {won['ours']} of {won['all']} cells, and no slower within the "
        f"interval in another {won['tied']}; in the rest it loses.\n"
    )
    text = "\n".join(
        [
            header(),
            verdict,
            HEAD,
            *rows,
            "\n## The kernels alone\n",
            TUNING_HEAD,
            *tuning(arguments.rounds),
        ]
    )
    print(text)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(text + "\n", encoding="utf-8")


def header() -> str:
    """Return when, where and with what this was measured."""
    here = machine(torch.cuda.get_device_name())
    installed = ", ".join(f"{k} {v}" for k, v in versions(Environment.current(), []).items())
    today = dt.datetime.now(dt.UTC).date()
    return f"# SiLU\n\n{today}; {here.device}, {here.cores} cores, {here.system}; {installed}.\n"


def contenders(task: str, dtype: torch.dtype, size: int) -> dict[str, Call]:
    """Return what to call, by name; everything is compiled when this returns."""
    x, y = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    if task == "silu(x) * y":
        made = {name: bound(f, x, y) for name, f in products().items()}
    else:
        make = bound if task == "forward" else backward_of
        made = {
            name: make(f, x.requires_grad_(task == "backward"), y) for name, f in silus().items()
        }
    source = x.detach()
    made[COPY] = lambda: out.copy_(source)
    for call in made.values():
        call()
    return made


def silus() -> dict[str, Callable[..., Tensor]]:
    """Return every SiLU; a second argument is left alone."""
    return {
        OURS[0]: lambda x, _: module.silu(x),
        OURS[1]: torch.compile(lambda x, _: module.silu(x), fullgraph=True, dynamic=False),
        "F.silu in Inductor": torch.compile(lambda x, _: F.silu(x), fullgraph=True, dynamic=False),
        "sigmoid(x) * x in Inductor": torch.compile(
            lambda x, _: torch.sigmoid(x) * x, fullgraph=True, dynamic=False
        ),
        "F.silu, eager": lambda x, _: F.silu(x),
    }


def products() -> dict[str, Callable[..., Tensor]]:
    """Return SwiGLU's product (Shazeer, GLU Variants Improve Transformer, 2020)."""
    return {
        OURS[0]: lambda x, y: module.silu(x) * y,
        OURS[1]: torch.compile(lambda x, y: module.silu(x) * y, fullgraph=True, dynamic=False),
        "F.silu in Inductor": torch.compile(
            lambda x, y: F.silu(x) * y, fullgraph=True, dynamic=False
        ),
        "F.silu, eager": lambda x, y: F.silu(x) * y,
    }


def bound(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> Call:
    """Return the forward call, without gradients."""

    def call() -> Tensor:
        with torch.no_grad():
            return function(x, y)

    return call


def backward_of(function: Callable[..., Tensor], x: Tensor, dy: Tensor) -> Call:
    """Return the backward call alone."""
    result = function(x, dy)
    return lambda: torch.autograd.grad(result, x, dy, retain_graph=True)


def measure(calls: Mapping[str, Call], rounds: int) -> Samples:
    """Return every contender's seconds a call, one sample a round."""
    order = list(calls)
    repeats = {name: max(3, min(100, int(BLOCK_S / timed(calls[name], 10)))) for name in order}
    samples: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(timed(calls[name], repeats[name]))
    return samples


def timed(call: Call, repeats: int) -> float:
    """Return the seconds of a call, over a block of them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(1e-3 * start.elapsed_time(end) / repeats)


def rows_of(task: str, dtype: torch.dtype, size: int, samples: Samples) -> list[str]:
    """Return a row for each contender, the fastest marked, with all that can't be told from it."""
    cells = f"| {task} | {str(dtype).removeprefix('torch.')} | {size} |"
    ranked = sorted((name for name in samples if name != COPY), key=lambda n: middle(samples[n]))
    marks = dict.fromkeys(ranked, "") | {n: "tie" for n in ranked if tied(samples, n, ranked[0])}
    marks[ranked[0]] = "**fastest**"
    rows = []
    for name in [*ranked, COPY]:
        share, (low, high) = stats.ratio(samples[COPY], samples[name])
        scale = PASSES[task] / 2
        of_copy = f"{share * scale:.2f} [{low * scale:.2f}, {high * scale:.2f}]"
        shown = "1" if name == COPY else of_copy
        mark = marks.get(name, "")
        rows.append(f"{cells} {name} | {microseconds(samples[name])} | {shown} | {mark} |")
    return rows


def count(won: dict[str, int], samples: Samples) -> None:
    """Add a cell to who won how often."""
    best = min((name for name in samples if name != COPY), key=lambda n: middle(samples[n]))
    won["all"] += 1
    won["ours"] += best in OURS
    won["tied"] += best not in OURS and any(tied(samples, name, best) for name in OURS)


def tied(samples: Samples, name: str, best: str) -> bool:
    """Whether the interval of the ratio to the fastest holds 1."""
    low, high = stats.ratio(samples[name], samples[best])[1]
    return low <= 1 <= high


def middle(values: list[float]) -> float:
    """Return the median."""
    return stats.median(values)[0]


def microseconds(values: list[float]) -> str:
    """Write a median and its interval."""
    median, (low, high) = stats.median(values)
    return f"{1e6 * median:.1f} [{1e6 * low:.1f}, {1e6 * high:.1f}]"


def tuning(rounds: int) -> list[str]:
    """Return a row for each block size and number of warps; the kernels are launched directly."""
    rows = []
    for dtype in DTYPES:
        for size in (2**28, 2**28 - 1):
            x, dy, out = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(3))
            kernels = {"forward": (x, out), "backward": (dy, x, out)}
            for name, tensors in kernels.items():
                cells = f"| {name} | {str(dtype).removeprefix('torch.')} | {size} |"
                samples = measure(launches(name, tensors), rounds)
                rows += [f"{cells} {key} | {microseconds(v)} |" for key, v in samples.items()]
    return rows


def launches(name: str, tensors: tuple[Tensor, ...]) -> dict[str, Call]:
    """Return the direct launches, by ``block | warps``."""
    kernel, n = getattr(module.kernels(), name), tensors[0].numel()

    def launch(block: int, warps: int) -> Call:
        return lambda: kernel[((n + block - 1) // block,)](
            *tensors, n // block, n % block, block=block, num_warps=warps
        )

    shapes = [(1024, 4), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8)]
    return {f"{block} | {warps}": launch(block, warps) for block, warps in shapes}


if __name__ == "__main__":
    main()
