"""How often a convolutional network calls the GPU, with fused convolutions and without.

    python benchmarks/launches.py [timm:NAME ...] [--batch 128] [--most 16] [--out FILE]

Counted in the code that Inductor writes for an H200, which needs no GPU: bfloat16, channels last,
inference. Without CUDA graphs each such call costs the host time, for which a small batch waits.
The last columns are how long Triton takes here for all kernels, one after another, and for the one
that takes longest: Inductor compiles several at once, and waits for the last.
"""

import argparse
import copy
import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule

from backbay.kit.passes import PassContext
from backbay.workloads import load
from backbay_optimizer.passes import folded_norms
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from speed.cuda_code import calls, code_for_cuda, seconds_to_compile
from speed.surroundings import versions

NAMES = ("timm:resnet18", "timm:resnet50", "timm:mobilenetv3_large_100")
KINDS = {"triton_": "Triton", "extern_kernels.": "PyTorch", "torch.ops.": "fused"}
"""What calls begin with, to what they are."""


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--most", type=int, default=folded_norms.MOST, help="folded by one call")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with mock.patch.object(folded_norms, "MOST", given.most):
        text = "\n".join(table(given.names, given.batch))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


def table(names: Sequence[str], batch: int) -> Iterator[str]:
    """Yield a table of calls; two rows for each network."""
    known = ", ".join(f"{k} {v}" for k, v in versions().items())
    today, most = dt.datetime.now(dt.UTC).date(), folded_norms.MOST
    yield f"{today}; counted, not run; {known}; batch {batch}; at most {most} folded by one call."
    yield ""
    yield f"| network | rewrites | {' | '.join(KINDS.values())} | all | compiled in, s | longest |"
    yield f"|---|---|{'---|' * len(KINDS)}---|---|---|"
    for name in names:
        for rewrites, code in codes(name, batch).items():
            counted, taken = calls(code), seconds_to_compile(code)
            cells: list[Any] = [
                sum(n for x, n in counted.items() if x.startswith(kind)) for kind in KINDS
            ]
            cells += [counted.total(), f"{sum(taken):.1f}", f"{max(taken):.2f}"]
            yield f"| {name} | {rewrites} | {' | '.join(map(str, cells))} |"


def codes(name: str, batch: int) -> dict[int, str]:
    """Return the code for a network: by how many convolutions are fused, none and all that can."""
    written: dict[int, str] = {}

    def compile_(graph_module: GraphModule, inputs: Sequence[Any]) -> Any:
        written[0] = code_for_cuda(copy.deepcopy(graph_module), inputs)
        # The graph is a CPU's, of which the pass would leave all alone.
        anywhere = dataclasses.replace(fused_convolutions.requires, devices=("cpu",))
        with mock.patch.object(type(fused_convolutions), "requires", anywhere):
            done = fused_convolutions.run(graph_module, PassContext())
        written[done] = code_for_cuda(graph_module, inputs)
        return lambda *_: (torch.empty(0),)

    cpu = torch.device("cpu")
    workload = load(name, seed=0, dtype=torch.bfloat16, device=cpu, train=False, size="base")
    size = (batch, *workload.args[0].shape[1:])
    images = torch.empty(size, dtype=torch.bfloat16, memory_format=torch.channels_last)
    model: Any = workload.model
    model = torch.compile(
        model.to(memory_format=torch.channels_last), backend=compile_, fullgraph=True
    )
    with torch.no_grad():
        model(images)
    return written


if __name__ == "__main__":
    main()
