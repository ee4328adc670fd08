"""What tables of conditions share: how a way of computing is timed and compared."""

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from speed.device import Flushed, limits, replayed

CALLS = 40
TURNS = 5

Call = Callable[[], Any]


def micros(call: Call) -> float:
    """Time a call on cold caches."""
    call()
    return 1e6 * Flushed(torch.device("cuda")).seconds(replayed(call), CALLS, replayed=True) / CALLS


def in_turns(calls: Iterable[Call]) -> list[float]:
    """Time calls on cold caches, as `micros`, in turns: a GPU that gets hot slows all of them."""
    flushed, graphs, held = Flushed(torch.device("cuda")), [], []
    for call in calls:
        call()
        graphs.append(replayed(call))
        held.append(call)  # what it reads may be its own, and a graph reads it again
    each = CALLS // TURNS
    found = [[flushed.seconds(x, each, replayed=True) / each for x in graphs] for _ in range(TURNS)]
    return [1e6 * statistics.median(times) for times in zip(*found, strict=True)]


def at_least(moved: float) -> str:
    """Return the microseconds that a copy takes to read and write so many bytes, as a cell."""
    return f"{1e6 * moved / _copied_in_a_second():.1f}"


@functools.cache
def _copied_in_a_second() -> float:
    return limits("cuda").copy_bytes_s


def normal(*shape: int) -> Tensor:
    """Draw a tensor."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def inductors(ways: Sequence[Call]) -> Iterator[Call]:
    """Yield each way as Inductor compiles it."""
    for way in ways:
        torch.compiler.reset()
        yield torch.compile(way, dynamic=False)


def compiled(way: Callable[..., Any], inputs: Sequence[Tensor], backend: Any) -> Call:
    """Return the call of a way as a backend compiles it, without gradients."""
    torch.compiler.reset()
    made = torch.compile(way, backend=backend, dynamic=False)
    with torch.no_grad():
        made(*inputs)
    return lambda: made(*inputs)


def trained(
    way: Callable[..., Tensor], inputs: Sequence[Tensor], backend: Any = "inductor"
) -> Call:
    """Return the call of a way as a backend compiles it, with the gradients that inputs want."""
    torch.compiler.reset()
    compiled = torch.compile(way, backend=backend, dynamic=False)
    wanted = [x for x in inputs if x.requires_grad]
    cotangent = torch.randn_like(way(*inputs).detach())

    def call() -> Any:
        result = compiled(*inputs)
        return torch.autograd.grad(result, wanted, cotangent) if wanted else result

    return call


def row(*cells: object) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def compared(times: Sequence[float]) -> list[str]:
    """Return times, and of all but the first the ratio to the first, as cells."""
    return [f"{x:.1f}" for x in times] + [f"{x / times[0]:.2f}" for x in times[1:]]
