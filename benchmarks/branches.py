"""How long Triton takes for a kernel with many branches, as Inductor writes for lists of tensors.

    python benchmarks/branches.py [1 8 16 24 43] [--target 90]

Each branch multiplies a bfloat16 weight by a factor for each channel, like what folds batch norms
into convolutions (``backbay_optimizer/passes/folded_norms.py``). It is compiled for a GPU of
NVIDIA's, which need not be there, in an empty cache.
"""

import argparse
import datetime as dt
import importlib.util
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel({parameters}, BLOCK: tl.constexpr):
    program = tl.program_id(0)
"""
BRANCH = """    {word} program >= {first} and program < {last}:
        at = (program - {first}) * BLOCK + tl.arange(0, BLOCK)
        inside = at < {size}
        channel = at // {each}
        weight = tl.load(weight{n} + at, inside, other=0).to(tl.float32)
        variance = tl.load(variance{n} + channel, inside, other=0).to(tl.float32)
        scale = tl.load(scale{n} + channel, inside, other=0).to(tl.float32)
        tl.store(out{n} + at, weight * (libdevice.rsqrt(variance + 1e-5) * scale), inside)
"""
SIZES = [(64, 64), (256, 576), (512, 256), (1024, 2304), (512, 4608)]
"""Blocks of weights, and weights of a channel, in turns."""
BLOCK = 1024


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("branches", nargs="*", type=int, default=[1, 8, 16, 24, 43])
    parser.add_argument("--target", type=int, default=90, help="compute capability")
    given = parser.parse_args()
    import triton  # noqa: PLC0415 (help needs none)

    today = dt.datetime.now(dt.UTC).date()
    print(f"{today}; triton {triton.__version__}, {os.cpu_count()} cores of {platform.machine()}\n")
    print("| branches | seconds |\n|---|---|")
    for count in given.branches:
        with tempfile.TemporaryDirectory(prefix="backbay-branches-") as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            print(f"| {count} | {seconds(count, given.target, Path(folder)):.1f} |", flush=True)


def seconds(count: int, target: int, folder: Path) -> float:
    """Time the compilation of one kernel."""
    import triton  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = [f"{x}{n}" for n in range(count) for x in ("weight", "variance", "scale", "out")]
    source = ASTSource(
        fn=kernel(count, names, folder),
        signature={**dict.fromkeys(names, "*bf16"), "BLOCK": "constexpr"},
        constexprs={"BLOCK": BLOCK},
        attrs={(n,): [["tt.divisibility", 16]] for n in range(len(names))},
    )
    start = time.perf_counter()
    triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 8})
    return time.perf_counter() - start


def kernel(count: int, names: list[str], folder: Path) -> Any:
    """Write a kernel and import it."""
    text, first = HEAD.format(parameters=", ".join(names)), 0
    for n in range(count):
        blocks, each = SIZES[n % len(SIZES)]
        word, last = "elif" if n else "if", first + blocks
        size = blocks * BLOCK - 37 * (n % 3)
        text += BRANCH.format(word=word, first=first, last=last, size=size, each=each, n=n)
        first = last
    path = folder / f"branches{count}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


if __name__ == "__main__":
    main()
