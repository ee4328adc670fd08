"""How long Triton takes to compile a kernel by how many loads it is told of.

    python benchmarks/coalescing.py [--repeats 3] [--out FILE]

A kernel adds up blocks. Unrolled by Triton, each block is a load of its own; in loops of eight
rounds, which LLVM unrolls, the GPU gets as many loads and Triton an eighth of them. Compiled for an
H100, which needs no GPU. Triton's own passes are its stage ``ttgir``, of which nearly all is
coalescing (``MLIR_ENABLE_TIMING=1`` shows it). Times are medians, with the fastest and the slowest.
"""

import argparse
import datetime as dt
import os
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compiler

from speed.surroundings import versions

BLOCKS = (16, 32, 64, 128, 256)
H100 = GPUTarget("cuda", 90, 32)


def unrolled_by_triton(x_ptr: tl.tensor, y_ptr: tl.tensor, blocks: tl.constexpr) -> None:
    """Add up blocks of 128 numbers."""
    at = tl.arange(0, 128)
    total = tl.zeros([128], tl.float32)
    for i in tl.static_range(blocks):
        total += tl.load(x_ptr + i * 128 + at)
    tl.store(y_ptr + at, total)


def unrolled_by_llvm(x_ptr: tl.tensor, y_ptr: tl.tensor, blocks: tl.constexpr) -> None:
    """Do the same."""
    at = tl.arange(0, 128)
    total = tl.zeros([128], tl.float32)
    for i in tl.static_range(0, blocks, 8):
        for j in range(8):
            total += tl.load(x_ptr + (i + j) * 128 + at)
    tl.store(y_ptr + at, total)


KERNELS = {"Triton": triton.jit(unrolled_by_triton), "LLVM": triton.jit(unrolled_by_llvm)}


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = "\n".join(table(given.repeats))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


def table(repeats: int) -> Iterator[str]:
    """Yield a table; a row for each number of blocks and way to unroll them."""
    known = ", ".join(f"{k} {v}" for k, v in versions().items())
    yield f"{dt.datetime.now(dt.UTC).date()}; compiled, not run; {known}."
    yield ""
    yield "| blocks | unrolled by | loads in PTX | all, s | Triton's passes, s |"
    yield "|---|---|---|---|---|"
    seconds_to_compile(KERNELS["Triton"], BLOCKS[0])  # who is first pays for what Triton loads
    for blocks in BLOCKS:
        for by, kernel in KERNELS.items():
            taken = [seconds_to_compile(kernel, blocks) for _ in range(repeats)]
            every, own, loads = zip(*taken, strict=True)
            yield f"| {blocks} | {by} | {max(loads)} | {_spread(every)} | {_spread(own)} |"


def seconds_to_compile(kernel: Any, blocks: int) -> tuple[float, float, int]:
    """Return the seconds of a compilation, those of its stage ``ttgir``, and the loads in PTX."""
    times: list[Any] = []
    source = ASTSource(
        kernel,
        {"x_ptr": "*fp32", "y_ptr": "*fp32", "blocks": "constexpr"},
        {"blocks": blocks},
        {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
    )
    with (
        tempfile.TemporaryDirectory(prefix="backbay-coalescing-") as folder,
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder),
        mock.patch.object(compiler, "CompiledKernel"),  # it asks a GPU
        mock.patch.object(
            triton.knobs.compilation, "listener", lambda **given: times.append(given["times"])
        ),
    ):
        compiler.compile(source, H100)
        (ptx,) = Path(folder).glob("*/*.ptx")
        loads = len(re.findall(r"\bld\.global\b", ptx.read_text("utf-8")))
    (found,) = times
    stages = dict(found.lowering_stages)
    return (found.ir_initialization + sum(stages.values())) / 1e6, stages["ttgir"] / 1e6, loads


def _spread(times: tuple[float, ...]) -> str:
    return f"{statistics.median(times):.2f} [{min(times):.2f}, {max(times):.2f}]"


if __name__ == "__main__":
    main()
