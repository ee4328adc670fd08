"""Linear layers of one row: by cuBLAS, or as a sum."""

import functools
from collections.abc import Iterator

import torch
from torch.nn import functional as F  # noqa: N812

from speed.condition_tables.timing import inductors, micros, normal

ROWS = (  # rows and columns of the weight
    *((n, 2048) for n in (512, 1000, 2048, 8192, 50257, 128256)),
    *((n, 1024) for n in (64, 1024, 3072, 32768, 65536, 151936)),
    *((768, 768), (3072, 768), (50257, 768), (1024, 3072), (2048, 8192)),
    *((4096, 4096), (14336, 4096), (4096, 14336), (65536, 4096), (16384, 16384)),
)


def one_row() -> Iterator[str]:
    """Compare a linear layer of one row with a sum, both by Inductor."""
    yield "| rows and columns of the weight | cuBLAS | sum | ratio |"
    yield "|---|---|---|---|"
    for rows, columns in ROWS:
        x, w = normal(1, columns), normal(rows, columns) * columns**-0.5
        ways = (
            functools.partial(F.linear, x, w),
            lambda x=x, w=w: (x.float() * w).sum(-1).to(x.dtype)[None],
        )
        with torch.no_grad():
            times = [micros(y) for y in inductors(ways)]
        yield f"| {rows}x{columns} | {times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f} |"
