"""How often a convolutional network calls the GPU, with fused convolutions and without.

    python benchmarks/launches.py [timm:NAME ...] [--batch 128] [--out FILE]

Counted in the code that Inductor writes for an H200, which needs no GPU: bfloat16, channels last,
inference. Without CUDA graphs each such call costs the host time, for which a small batch waits.
"""

import argparse
import copy
import datetime as dt
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from speed.cuda_code import calls, code_for_cuda
from speed.surroundings import versions
from torch.fx import GraphModule

from backbay.kit.passes import PassContext
from backbay.passes import fused_convolutions
from backbay.race.workloads import load

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
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = "\n".join(table(given.names, given.batch))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


def table(names: Sequence[str], batch: int) -> Iterator[str]:
    """Give a table of calls; two rows for each network."""
    known = ", ".join(f"{k} {v}" for k, v in versions().items())
    yield f"{dt.datetime.now(dt.UTC).date()}; counted, not run; {known}; batch {batch}."
    yield ""
    yield f"| network | rewrites | {' | '.join(KINDS.values())} | all |"
    yield f"|---|---|{'---|' * len(KINDS)}---|"
    for name in names:
        for rewrites, counted in counts(name, batch).items():
            cells = [sum(n for x, n in counted.items() if x.startswith(kind)) for kind in KINDS]
            yield f"| {name} | {rewrites} | {' | '.join(map(str, cells))} | {counted.total()} |"


def counts(name: str, batch: int) -> dict[int, Counter[str]]:
    """Count the calls of a network: by how many convolutions are fused, none and all that can."""
    counted: dict[int, Counter[str]] = {}

    def compile_(graph_module: GraphModule, inputs: Sequence[Any]) -> Any:
        counted[0] = calls(code_for_cuda(copy.deepcopy(graph_module), inputs))
        # The graph is a CPU's, of which the pass would leave all alone.
        module = sys.modules["backbay.passes.fused_convolutions"]
        with mock.patch.object(module, "DEVICES", ("cpu",)):
            done = fused_convolutions.run(graph_module, PassContext())
        counted[done] = calls(code_for_cuda(graph_module, inputs))
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
    return counted


if __name__ == "__main__":
    main()
