"""How fast many tensors are copied to new ones, as results of a replayed CUDA graph are, on a GPU.

    python benchmarks/copies.py [dlrm] [resnet50] [llama] [--out FILE]

Tensors have the shapes of a model's gradients, in bfloat16. Ways take turns, each after a write
that empties the caches: ``torch._foreach_copy_`` as tensors are, or with those of `LARGE` bytes
read as larger numbers; ``copy_`` of each tensor, or of each large one; and as results of a replay
are, where only the largest are copied by themselves. *one* is a copy of one tensor of as many
bytes: the limit. A row has the median of the milliseconds by CUDA events, with
its 95 % interval, the bytes that are read and written in that time, and how long the host is at
it, new tensors included.
"""

import datetime as dt
import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from backbay.timing import stats
from backbay.timing.device import device_name
from backbay_optimizer.cuda_graphs.buffers import copy_all
from speed.command import print_tables
from speed.model_cases import built, case
from speed.surroundings import versions

MODELS = {
    "dlrm": "dlrm.train",
    "resnet50": "resnet50.train",
    "llama": "llama_1b_2l.train_1x4k",
}
LARGE = 1 << 20
ROUNDS = 40
EMPTIED = 1 << 28
"""Numbers of 4 bytes."""

Copy = Callable[[], object]


def new(like: Tensor) -> Tensor:
    """Return a tensor that is laid out like another."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def foreach(sources: Sequence[Tensor], larger: torch.dtype | None = None) -> None:
    """Copy all with few launches, large ones read as larger numbers."""
    copies = [new(x) for x in sources]
    if larger is None:
        torch._foreach_copy_(copies, list(sources))
        return
    pairs = list(zip(copies, sources, strict=True))
    small = [x for x in pairs if not is_large(x[1])]
    large = [(read_as(x, larger), read_as(y, larger)) for x, y in pairs if is_large(y)]
    for group in filter(None, (small, large)):
        torch._foreach_copy_([x for x, _ in group], [x for _, x in group])


def read_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor's memory, of which it has all, as other numbers."""
    memory = tensor.untyped_storage()
    numbers = torch.empty(0, dtype=dtype, device=tensor.device)
    return numbers.set_(memory, 0, (memory.nbytes() // dtype.itemsize,), (1,))


def as_results(sources: Sequence[Tensor]) -> None:
    """Copy as a replay copies its results."""
    copy_all([new(x) for x in sources], list(sources))


def is_large(tensor: Tensor) -> bool:
    """Whether it is worth a look by itself."""
    return tensor.numel() * tensor.element_size() >= LARGE


def each(sources: Sequence[Tensor], *, small: bool) -> None:
    """Copy large ones by themselves, and small ones likewise or with one launch."""
    left = []
    for x in sources:
        if small or is_large(x):
            new(x).copy_(x)
        else:
            left.append(x)
    if left:
        foreach(left)


def ways(sources: Sequence[Tensor]) -> dict[str, Copy]:
    """Return the ways to copy these."""
    whole = torch.cat([x.reshape(-1) for x in sources])
    to = torch.empty_like(whole)
    return {
        "one": lambda: to.copy_(whole),
        "foreach": lambda: foreach(sources),
        "foreach, as int32": lambda: foreach(sources, torch.int32),
        "foreach, as int64": lambda: foreach(sources, torch.int64),
        "each": lambda: each(sources, small=True),
        "each large one": lambda: each(sources, small=False),
        "as results": lambda: as_results(sources),
    }


def gradients(name: str) -> list[Tensor]:
    """Return tensors as the gradients of a model are."""
    workload = built(case(name), "full", device=torch.device("cuda"), seed=0)
    return [torch.randn_like(x) for x in workload.model.parameters() if x.requires_grad]


def table(name: str) -> Iterator[str]:
    """Compare ways for a model."""
    sources = gradients(name)
    moved = 2 * sum(x.numel() * x.element_size() for x in sources)
    copies = ways(sources)
    emptied = torch.empty(EMPTIED, device="cuda")
    on_device: dict[str, list[float]] = {way: [] for way in copies}
    on_host: dict[str, list[float]] = {way: [] for way in copies}
    for copy in copies.values():
        copy()
    order, shuffled = list(copies), random.Random(0)
    for _ in range(ROUNDS):
        shuffled.shuffle(order)
        for way in order:
            emptied.zero_()
            device_ms, host_ms = timed(copies[way])
            on_device[way].append(device_ms)
            on_host[way].append(host_ms)
    yield f"{len(sources)} tensors, {moved / 2e6:.0f} MB"
    yield ""
    yield "| way | ms | TB/s | host, ms |"
    yield "|---|---|---|---|"
    for way, samples in on_device.items():
        median, (low, high) = stats.median(samples)
        host, _ = stats.median(on_host[way])
        rate = moved / median / 1e9
        yield f"| {way} | {median:.3f} [{low:.3f}, {high:.3f}] | {rate:.2f} | {host:.3f} |"


def timed(copy: Copy) -> tuple[float, float]:
    """Return the device's milliseconds and the host's."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch has no stub
    begin.record()
    start = time.perf_counter()
    copy()
    host_ms = 1e3 * (time.perf_counter() - start)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), host_ms


def header() -> str:
    """Return day, machine and versions."""
    said = ", ".join(f"{name} {version}" for name, version in versions().items())
    today = dt.datetime.now(dt.UTC).date()
    return f"{today}; {device_name(torch.device('cuda'))}; {said}; bfloat16."


TABLES = {name: functools.partial(table, model) for name, model in MODELS.items()}

if __name__ == "__main__":
    print_tables(__doc__, TABLES, header)
