"""List the kernels of a step that only copy a tensor or a part of it, mostly to another layout.

    python benchmarks/layout_copies.py [CASE ...] [--arms inductor,backbay:no-graphs]
        [--at-once 1] [--out FILE]

A case is one of ``speed.model_cases`` (``vae_decoder_nchw.infer``) or of ``cuda_graphs.py``, with
``,channels_last`` where wanted (``diffusers:unet@base,8,channels_last,infer``). Each is in bfloat16
with random weights. Copies are found in the profile of the seventh step:

- a kernel of Inductor's, if its code stores only what it loaded, casts aside: its name, as of a
  convolution whose weight it copies, does not always say so;
- cuDNN's kernels from one layout to the other, torch's and CUDA's copies.

A kernel that also computes isn't counted, whatever layout it writes; nor is one that gathers or
concatenates, such as nearest upsampling. A case fails if two kernels of one name differ in that.
CUDA graphs are off: their own copies would be counted. With more than one case ``--at-once``, only
counts mean anything.
"""

import argparse
import datetime as dt
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch
from torch._inductor.codecache import PyCodeCache
from torch.autograd import DeviceType  # type: ignore[attr-defined] # it is there
from torch.profiler import ProfilerActivity, profile

import cuda_graphs
from backbay.causes import one_line
from backbay.proof import Step, Workload
from backbay.timing.device import device_name
from backbay.timing.kernels import LIBRARIES_COPIES
from speed import arms
from speed.model_cases import CASES, built, case
from speed.surroundings import versions

NAMES = (
    "vae_decoder_nchw.infer",
    "vae_decoder_nhwc.infer",
    "vae_decoder_nchw.train",
    "vae_decoder_nhwc.train",
    "diffusers:unet@base,8,infer",
    "diffusers:unet@base,8,channels_last,infer",
)
ARMS = (arms.INDUCTOR, f"{arms.OURS}:{arms.NO_GRAPHS}")
WARM = 6
SHOWN = 12
"""Kernels of an arm, those that take longest."""
_KERNEL = re.compile(r"^def (triton_\w+)\(.*?(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
_LOADED = re.compile(r"^\s*(\w+) = tl\.load\(\w+ \+ \((?!.*\btmp\d)", re.MULTILINE)
"""Where a number that was computed says what is read, it is gathered."""
_CAST = re.compile(r"^\s*(\w+) = (\w+)\.to\([\w.]+\)$", re.MULTILINE)
_STORED = re.compile(r"^\s*tl\.store\(\w+ \+ \(.*\), (\w+), [^,]*\)$", re.MULTILINE)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=NAMES, metavar="CASE")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--at-once", type=int, default=1, help="cases that run side by side")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = list(head())
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.at_once, mp_context=spawning, max_tasks_per_child=1) as pool:
        tables = [pool.submit(partial(table, x, given.arms.split(","))) for x in given.cases]
        for done in as_completed(tables):
            lines += done.result()
            print("\n".join(done.result()), flush=True)
            if given.out:  # what is done is kept, whatever becomes of the rest
                given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def head() -> Iterator[str]:
    """Yield what was counted where."""
    known = ", ".join(f"{k} {v}" for k, v in versions("diffusers").items())
    today, where = dt.datetime.now(dt.UTC).date(), device_name(torch.device("cuda"))
    yield f"{today}; {where}; {known}; bfloat16; copies of one step."


def table(name: str, names: Sequence[str]) -> list[str]:
    """Return the lines of one case.

    Args:
        name: of the case.
        names: of the arms.
    """
    device = torch.device("cuda")
    lines = ["", f"`{name}`", "", "| arm | copies | ms | step, ms |", "|---|---|---|---|"]
    details: list[str] = []
    try:
        one = Step(workload(name, device), train=name.endswith("train"), seed=0)
        for arm in names:
            found = kernels(one, arm)
            known = codes()
            copying = {x: y for x, y in found.items() if copies(x, known)}
            count = sum(n for n, _ in copying.values())
            ms, all_ms = (sum(y for _, y in x.values()) for x in (copying, found))
            lines.append(f"| `{arm}` | {count} | {ms:.2f} | {all_ms:.2f} |")
            longest = sorted(copying.items(), key=lambda x: -x[1][1])[:SHOWN]
            details += [f"- `{arm}`: {n} x `{x[:90]}`, {y:.3f} ms" for x, (n, y) in longest]
    except Exception as error:  # noqa: BLE001 (the other cases go on)
        return ["", f"`{name}` failed: {one_line(error)}"]
    return [*lines, "", *details]


def workload(name: str, device: torch.device) -> Workload:
    """Return the model and inputs of a case."""
    if name in {x.name for x in CASES}:
        return built(case(name), "full", device=device, seed=0)
    last = ",channels_last"
    made = cuda_graphs.built(name.replace(last, ""), device)
    if last in name:
        made.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def kernels(one: Step, arm: str) -> Mapping[str, tuple[int, float]]:
    """Return how often each kernel of a step runs, and for how many milliseconds together."""
    PyCodeCache.cache_clear()
    call = arms.compiled(one.workload.model, arm)
    for _ in range(WARM):
        one(call)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        one(call)
        torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    took: Counter[str] = Counter()
    for x in profiled.events() or ():
        if x.device_type == DeviceType.CUDA and not x.is_user_annotation:
            counts[x.name] += 1
            took[x.name] += x.time_range.end - x.time_range.start
    return {x: (counts[x], took[x] / 1e3) for x in counts}


def codes() -> Mapping[str, Sequence[str]]:
    """Return the code of Inductor's kernels since they were forgotten last, by name.

    A forward and its backward may each have one of a name.
    """
    found: dict[str, list[str]] = {}
    for path in {x.__file__ for x in PyCodeCache.modules if x.__file__}:
        for name, code in kernels_in(Path(path).read_text(encoding="utf-8")):
            found.setdefault(name, []).append(code)
    return found


def kernels_in(text: str) -> list[tuple[str, str]]:
    """Return the names and the code of the Triton kernels in a module that Inductor wrote."""
    return [(x[1], x[0]) for x in _KERNEL.finditer(text)]


def copies(name: str, known: Mapping[str, Sequence[str]]) -> bool:
    """Whether a kernel only copies.

    Args:
        name: of the kernel, as a profile has it.
        known: the code of Inductor's kernels.

    Raises:
        ValueError: two kernels have that name, and one of them does more.
    """
    if name not in known:
        return LIBRARIES_COPIES.fullmatch(name) is not None
    if "index" in name:  # nearest upsampling computes what it reads without a ``tmp``
        return False
    if len(said := {only_copies(x) for x in known[name]}) > 1:
        raise ValueError(f"of two kernels named {name}, one only copies")
    return said.pop()


def only_copies(code: str) -> bool:
    """Whether Inductor's code for a kernel stores only what it loaded, casts aside."""
    same = set(_LOADED.findall(code))
    for new, old in _CAST.findall(code):
        if old in same:
            same.add(new)
    stored = _STORED.findall(code)
    writes = code.count("tl.store(") + code.count("tl.atomic_")
    return 0 < len(stored) == writes and {*stored} <= same


if __name__ == "__main__":
    main()
