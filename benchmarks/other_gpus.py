"""Whether our kernels compile for GPUs that they were not measured on, and fit into them.

    python benchmarks/other_gpus.py [--out FILE]

Launches that have a plan are compiled for each compute capability, which needs no GPU. A cell is
how much shared memory the largest kernel takes with the committed plan, in KiB. Where a thread
block can't have as much (CUDA C++ Programming Guide, technical specifications by compute
capability), the plan follows that a search on such a GPU begins with, and what that takes. Where
Triton has no code for a kernel, that is said.
"""

import argparse
import datetime as dt
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from torch.utils import _pytree as pytree
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError

from backbay_optimizer.kernels import float8_rows
from backbay_optimizer.kernels.elsewhere import Launch
from backbay_optimizer.tuning.plan_search import smaller
from speed.condition_tables.elsewhere import asked, launches, shown
from speed.surroundings import versions

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Compute capabilities, times ten, to KiB of shared memory that a thread block can have."""

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages")
_DIVISOR = 16
"""Of sizes and addresses, which Triton tells kernels of."""


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = []
    for line in table():
        print(line, flush=True)
        lines.append(line)
    if given.out:
        given.out.write_text("\n".join((*lines, "")), encoding="utf-8")


def table() -> Iterator[str]:
    """Yield a table; a row for each launch."""
    names = ", ".join(f"{k} {v}" for k, v in versions().items())
    yield f"{dt.datetime.now(dt.UTC).date()}; {names}."
    yield ""
    yield f"| launch | plan | {' | '.join(f'{x // 10}.{x % 10}' for x in SHARED)} |"
    yield f"|{'---|' * (2 + len(SHARED))}"
    for name, module, call in launches(_nothing):
        plan, launch = asked(module, call)
        cells = [_fitted(plan, launch, capability) for capability in SHARED]
        yield f"| {name} | {shown(plan)} | {' | '.join(cells)} |"


def _nothing(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def _fitted(plan: Any, launch: Launch, capability: int) -> str:
    said = []
    for how in smaller(plan, launch.limits):
        try:
            taken = max(_taken(x, capability) for x in _launched(launch, how))
        except CompilationError:
            if (
                launch.run is not float8_rows.launch
                or divmod(capability, 10) >= float8_rows.CAPABLE
            ):
                raise
            return "has no such float8"
        fits = taken <= SHARED[capability] * 1024
        said.append(f"{taken / 1024:.0f}")
        if fits:
            return said[0] if how == plan else f"{said[0]}; {shown(how)}: {said[-1]}"
    return f"{said[0]}; no smaller plan fits"


class _Noted:
    """A kernel that notes what it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.given: dict[str, Any] = {}

    def __getitem__(self, grid: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> None:
            self.given = {**dict(zip(self.kernel.arg_names, args, strict=False)), **kwargs}

        return noted


def _launched(launch: Launch, plan: Any) -> list[_Noted]:
    kernels = pytree.tree_map(_Noted, list(launch.kernels))
    launch.run(*kernels, *launch.given, plan)
    return [x for x in pytree.tree_leaves(kernels) if x.given]


def _taken(noted: _Noted, capability: int) -> int:
    """Return the bytes of shared memory that a kernel takes."""
    options = {x: noted.given[x] for x in _OPTIONS if x in noted.given}
    target = GPUTarget("cuda", capability, 32)
    with (
        tempfile.TemporaryDirectory(prefix="backbay-other-gpus-") as folder,
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder),
    ):
        compiled = triton.compile(_source(noted.kernel, noted.given), target, options)
    shared: int = compiled.metadata.shared
    return shared


def _source(kernel: Any, given: Mapping[str, Any]) -> ASTSource:
    fixed = {x.name for x in kernel.params if x.is_constexpr}
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = given[name]
        if name in fixed or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        is_tensor = isinstance(value, Tensor)
        numbers = "i32" if isinstance(value, int) else "fp32"
        signature[name] = _TYPES[value.dtype] if is_tensor else numbers
        if is_tensor or (isinstance(value, int) and value % _DIVISOR == 0):
            attributes[place,] = [["tt.divisibility", _DIVISOR]]
    return ASTSource(kernel, signature, constants, attributes)


if __name__ == "__main__":
    main()
