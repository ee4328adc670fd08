"""What a backend of the kit costs at each call of compiled code, beside torch's own.

    python benchmarks/overhead.py [--rounds 1500] [--calls 40]

A compiled function of one add is called: what is timed is Dynamo's guards, the wrappers of the
backend, and the add. Blocks of calls are interleaved, the order turning by one each round, and the
thread's own time counts: so a busy machine meets all alike. Prints Markdown: medians with their
95 % bootstrap intervals, and how much more each backend of the kit takes than torch's own on the
same way: ``aot_eager`` where AOTAutograd is on it, ``eager`` where it is not. Exit code 1: a whole
difference is not within 1 µs.
"""

import argparse
import gc
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

import startup
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.timing import stats

BAR_US = 1.0
WARMUPS = 5
"""Calls before a block: caches hold another's data."""

Call = Callable[[torch.Tensor], torch.Tensor]


@graph_pass(level="torch")
def look(graph_module: torch.fx.GraphModule) -> int:
    """Change nothing, at Dynamo's level."""
    return 0 * len(graph_module.graph.nodes)


class ToEager(Backend):
    """The least that a backend can be: a pass, then the graph as it is."""

    passes = (look,)
    codegen = "eager"


class ToAotEager(ToEager):
    """The same, and torch's own backend behind it."""

    codegen = "aot_eager"


class AtenPass(Backend):
    """A pass on ATen graphs."""

    passes = (look.at("aten"),)
    codegen = "eager"


class OwnTorch(Backend):
    """A compile method that returns the graph's own forward."""

    def compile(self, graph_module: torch.fx.GraphModule, _: Any) -> Any:
        """Generate no code."""
        return graph_module.forward


class OwnAten(OwnTorch):
    """The same on ATen graphs."""

    level = "aten"


class OwnFunction(Backend):
    """A compile method that returns a function of its own, whose result is checked at each call."""

    def compile(self, _: torch.fx.GraphModule, __: Any) -> Any:
        """Generate the least code."""
        return lambda x: (x + 1,)


KIT: Mapping[str, tuple[str, Backend]] = {
    'codegen "eager"': ("eager", ToEager()),
    "own compile, the graph's forward": ("eager", OwnTorch()),
    "own compile, a function": ("eager", OwnFunction()),
    'codegen "aot_eager"': ("aot_eager", ToAotEager()),
    "a pass on ATen graphs": ("aot_eager", AtenPass()),
    "own compile on ATen graphs": ("aot_eager", OwnAten()),
}
"""Backend of the kit to torch's own, with which it shares the way, and the backend."""


def add_one(x: torch.Tensor) -> torch.Tensor:
    """Be as little as can be compiled."""
    return x + 1


def compiled(backend: Any) -> Call:
    """Compile a function that shares no code object, and so no list of guards, with any other."""
    function = types.FunctionType(add_one.__code__.replace(), add_one.__globals__)
    call: Call = torch.compile(function, backend=backend)
    return call


def main() -> int:
    """Measure, print, and return whether the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--calls", type=int, default=40, help="in a block")
    arguments = parser.parse_args()
    startup.print_date()
    held = [
        table(what, x, rounds=arguments.rounds, calls=arguments.calls)
        for what, x in (
            ("Inference", torch.ones(8)),
            ("Forward of training", torch.ones(8, requires_grad=True)),
        )
    ]
    return 0 if all(held) else 1


def table(what: str, x: torch.Tensor, *, rounds: int, calls: int) -> bool:
    """Print one table, and return whether the bar holds."""
    torch.compiler.reset()
    ready = {name: compiled(name) for name in ("eager", "aot_eager")}
    ready |= {name: compiled(backend) for name, (_, backend) in KIT.items()}
    samples = interleaved(ready, x, rounds=rounds, calls=calls)
    print(f"{what}: {rounds} rounds of {calls} calls each.\n")
    print("| backend | µs a call, median [95 %] | beside | difference, µs | at most 1 µs |")
    print("|---|---|---|---|---|")
    held = True
    for name, values in samples.items():
        median, (low, high) = stats.median(values)
        measured = f"{median:.2f} [{low:.2f}, {high:.2f}]"
        if name not in KIT:
            print(f"| torch's `{name}` | {measured} | | | |")
            continue
        beside = KIT[name][0]
        more, (least, most) = stats.difference(values, samples[beside])
        held &= most <= BAR_US
        verdict = "yes" if most <= BAR_US else "**no**"
        print(
            f"| kit: {name} | {measured} | `{beside}` | {more:+.2f} [{least:+.2f}, {most:+.2f}] "
            f"| {verdict} |"
        )
    print()
    return held


def interleaved(
    ready: Mapping[str, Call], x: torch.Tensor, *, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Return microseconds a call, one sample a round."""
    samples: dict[str, list[float]] = {name: [] for name in ready}
    order = list(ready)
    for call in ready.values():
        block_us(call, x, calls)
    for _ in range(rounds):
        for name in order:
            samples[name].append(block_us(ready[name], x, calls))
        order.append(order.pop(0))
    return samples


def block_us(call: Call, x: torch.Tensor, calls: int) -> float:
    """Time a block of calls; return microseconds for each."""
    for _ in range(WARMUPS):
        call(x)
    gc.disable()  # a collection inside a block would be charged to the backend
    try:
        start = time.thread_time_ns()
        for _ in range(calls):
            call(x)
        return (time.thread_time_ns() - start) / 1e3 / calls
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
