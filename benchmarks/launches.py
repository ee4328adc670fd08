"""How often a convolutional network calls the GPU, with rewrites and without.

    python benchmarks/launches.py [timm:NAME ...] [--batch 128] [--most 16] [--out FILE]
    python benchmarks/launches.py --train [--ends] [timm:NAME ...] [--repeats 3] [--out FILE]

Counted in the code that Inductor writes for an H200, which needs no GPU: bfloat16, channels last,
inference. Without CUDA graphs each such call costs the host time, for which a small batch waits.
The last columns are how long Triton takes here for all kernels, one after another, and for the one
that takes longest, each compiled once: Inductor compiles several at once, and waits for the last.

In training, forward and backward are counted, of all but the pooling and the layer at the end. The
rewrites are ``batch_norms``, ``fused_counters``, ``pooled_convolutions`` and at last
``depthwise_convolutions``, one after another.
What a call runs on the GPU is not known: cuDNN's convolutions are often several kernels. Each of
them waits for the one before it, even if a CUDA graph launches it. Next to them is how often torch
compiled a Triton kernel to see what it writes, and how long all that is before Triton took, with
that kept (``backbay_optimizer.inductor.kernel_analysis``) in the last row: the median of
repetitions that take turns, the fastest and the slowest. Before them everything runs once, and
counts for nothing.
With ``--ends`` there are only the first row and the last, and how long Triton takes for all their
kernels, one after another, and for the one that takes longest.
"""

import argparse
import contextlib
import copy
import dataclasses
import datetime as dt
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._higher_order_ops import triton_kernel_wrap
from torch.fx import GraphModule

from backbay.kit.passes import Pass, PassContext
from backbay.proof import Workload
from backbay.workloads import load
from backbay_optimizer.inductor.kernel_analysis import analyses_kept, forget
from backbay_optimizer.kernels import batch_norm, depthwise_convolution
from backbay_optimizer.passes import folded_norms
from backbay_optimizer.passes.batch_norms import batch_norms
from backbay_optimizer.passes.depthwise_convolutions import depthwise_convolutions
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from backbay_optimizer.passes.fused_counters import fused_counters
from backbay_optimizer.passes.pooled_convolutions import pooled_convolutions
from speed.cuda_code import calls, code_for_cuda, seconds_to_compile, training_codes_for_cuda
from speed.surroundings import versions

NAMES = ("timm:resnet18", "timm:resnet50", "timm:mobilenetv3_large_100")
KINDS = {"triton_": "Triton", "extern_kernels.": "PyTorch", "torch.ops.": "fused"}
"""What calls begin with, to what they are."""
TRAINING: Sequence[Sequence[Pass]] = (
    (),
    (batch_norms,),
    (batch_norms, fused_counters),
    (batch_norms, fused_counters, pooled_convolutions),
    (depthwise_convolutions, pooled_convolutions, batch_norms, fused_counters),
)
"""What is counted of a training step."""


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--train", action="store_true", help="count a training step")
    parser.add_argument("--ends", action="store_true", help="no rewrites, and all of them")
    parser.add_argument("--repeats", type=int, default=3, help="of a training step")
    parser.add_argument("--most", type=int, default=folded_norms.MOST, help="folded by one call")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.train:
        rows = training_table(given.names, given.batch, given.repeats, ends=given.ends)
        text = "\n".join(rows)
    else:
        with mock.patch.object(folded_norms, "MOST", given.most):
            text = "\n".join(table(given.names, given.batch))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


def table(names: Sequence[str], batch: int) -> Iterator[str]:
    """Yield a table of calls; two rows for each network."""
    yield f"{_title(batch)}; at most {folded_norms.MOST} folded by one call."
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


@dataclasses.dataclass
class Written:
    """The code for a training step, with some passes."""

    passes: Sequence[Pass]
    kept: bool = False
    """Whether what is found out of a kernel is kept."""
    counted: list[int] = dataclasses.field(default_factory=list)
    """Calls of forward and backward."""
    analyses: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)
    codes: Sequence[str] = ()
    compiled: list[Sequence[float]] = dataclasses.field(default_factory=list)
    """How long Triton took for each kernel."""

    @property
    def rewrites(self) -> str:
        """Its row's name."""
        named = ", ".join(x.name for x in self.passes) or "none"
        return f"{named}; analyses kept" if self.kept else named

    def write(self, name: str, batch: int) -> None:
        """Write it once more."""
        analyse = mock.Mock(wraps=triton_kernel_wrap.generate_ttir)
        forget()
        start = time.perf_counter()
        with (
            mock.patch.object(triton_kernel_wrap, "generate_ttir", analyse),
            analyses_kept() if self.kept else contextlib.nullcontext(),
        ):
            self.codes = training_codes(name, batch, self.passes)
        self.seconds.append(time.perf_counter() - start)
        self.counted = [calls(x).total() for x in self.codes]
        self.analyses = analyse.call_count


def training_table(names: Sequence[str], batch: int, repeats: int, *, ends: bool) -> Iterator[str]:
    """Yield a table of the calls of training steps; a row for each set of rewrites."""
    heads = ["network", "rewrites", "forward", "backward", "all", "analyses", "written in, s"]
    if ends:
        heads += ["kernels", "compiled in, s", "longest"]
    yield f"{_title(batch)}; Inductor's calls of a step without pooling and classifier."
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for name in names:
        rows = [Written(x) for x in TRAINING[: 1 if ends else None]]
        rows.append(Written(TRAINING[-1], kept=True))
        for number in range(1 + repeats):
            for row in rows:
                row.write(name, batch)
                if number and ends:
                    row.compiled.append([x for y in row.codes for x in seconds_to_compile(y)])
        for row in rows:
            cells: list[Any] = [*row.counted, sum(row.counted), row.analyses]
            cells.append(_spread(row.seconds[1:]))
            if ends:
                cells += [len(row.compiled[0]), _spread([sum(x) for x in row.compiled])]
                cells.append(_spread([max(x) for x in row.compiled]))
            yield f"| {name} | {row.rewrites} | {' | '.join(map(str, cells))} |"


def _spread(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} [{min(times):.1f}, {max(times):.1f}]"


def training_codes(name: str, batch: int, passes: Sequence[Pass]) -> list[str]:
    """Return the code for a network's forward and backward with passes let loose on a CPU."""

    def rewrite(graph_module: GraphModule) -> None:
        for one in passes:
            anywhere = dataclasses.replace(one.requires, devices=("cpu",))
            with mock.patch.object(type(one), "requires", anywhere):
                one.run(graph_module, PassContext())

    workload = _loaded(name, train=True)
    model: Any = workload.model
    model.train().to(memory_format=torch.channels_last)
    # The kernel's conditions are of a GPU, which no tensor here is on; sizes are checked as ever.
    with contextlib.ExitStack() as stack:
        for kernel in (batch_norm, depthwise_convolution):
            for condition in ("unfit", "unmeasured"):
                stack.enter_context(mock.patch.object(kernel, condition, return_value=None))
        return training_codes_for_cuda(
            model.forward_features, _images(workload, batch), rewrite=rewrite
        )


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

    workload = _loaded(name, train=False)
    images = _images(workload, batch)
    model: Any = workload.model
    model = torch.compile(
        model.to(memory_format=torch.channels_last), backend=compile_, fullgraph=True
    )
    with torch.no_grad():
        model(images)
    return written


def _loaded(name: str, *, train: bool) -> Workload:
    cpu = torch.device("cpu")
    return load(name, seed=0, dtype=torch.bfloat16, device=cpu, train=train, size="base")


def _images(workload: Workload, batch: int) -> torch.Tensor:
    size = (batch, *workload.args[0].shape[1:])
    return torch.empty(size, dtype=torch.bfloat16, memory_format=torch.channels_last)


def _title(batch: int) -> str:
    known = ", ".join(f"{k} {v}" for k, v in versions().items())
    return f"{dt.datetime.now(dt.UTC).date()}; counted, not run; {known}; batch {batch}"


if __name__ == "__main__":
    main()
