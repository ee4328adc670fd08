"""Rows in float8 with a scale for each, alone and in layers, as Inductor has them and Backbay."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import backbay
from speed.condition_tables.row_norms import rms_norm
from speed.condition_tables.timing import at_least, compared, compiled, micros, normal, row, trained

SHAPES = (
    *((64, 8192), (512, 4096), (2048, 2048), (8192, 4096), (2048, 8192), (16384, 2048)),
    *((4096, 14336), (4096, 2560), (4096, 5120), (4096, 11008), (2048, 16384)),
)
"""Rows and columns."""

LAYERS = ((512, 4096, 14336), (2048, 4096, 14336), (8192, 4096, 14336), (8192, 2048, 8192))
"""Tokens, columns, and columns within."""

_BYTES = {"alone": 3, "norm": 3, "sum and norm": 7, "gate": 5}
_MOST = torch.finfo(torch.float8_e4m3fn).max


def rounded(y: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows to float8, each by its largest magnitude."""
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / _MOST
    return (y.float() / scale).clamp(-_MOST, _MOST).to(torch.float8_e4m3fn), scale


def float8_rows() -> Iterator[str]:
    """Compare what is alone, behind a norm, with the sum before that, and behind a gate."""
    yield row("rows and columns", *(x for k in _BYTES for x in (k, "limit", "ours", "ratio")))
    yield f"|{'---|' * (1 + 4 * len(_BYTES))}"
    for rows, columns in SHAPES:
        x, other, weight = normal(rows, columns), normal(rows, columns), normal(columns)
        ways = (
            (lambda x, _, __: rounded(x)),
            (lambda x, _, weight: rounded(rms_norm(x, weight))),
            _behind_a_sum,
            (lambda x, other, _: rounded(F.silu(x) * other)),
        )
        cells = []
        for way, each in zip(ways, _BYTES.values(), strict=True):
            calls = [compiled(way, (x, other, weight), y) for y in ("inductor", backbay)]
            one, ours, ratio = compared([micros(call) for call in calls])
            cells += [one, at_least(each * rows * columns), ours, ratio]
        yield row(f"{rows}x{columns}", *cells)


def _behind_a_sum(x: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    total = x + other
    return *rounded(rms_norm(total, weight)), total


def float8_layers() -> Iterator[str]:
    """Compare a feed-forward layer in float8, with the sum and the norm before it."""
    yield row("layer", "Inductor's", "without", "with", "ratio", "ratio")
    yield f"|{'---|' * 6}"
    backends = ("inductor", *(functools.partial(backbay, options=x) for x in (_WITHOUT, _WITH)))
    for tokens, columns, within in LAYERS:
        sizes = ((within, columns), (within, columns), (columns, within))
        weights = [x for size in sizes for x in rounded(normal(*size) * size[1] ** -0.5)]
        given = (*(normal(tokens, columns) for _ in range(2)), normal(columns), *weights)
        with torch.no_grad():
            times = [micros(trained(_layer, given, x)) for x in backends]
        yield row(f"{tokens}x{columns}x{within}", *compared(times))


_WITH = {"cuda_graphs": False}
_WITHOUT = {**_WITH, "float8_rows": False}


def _layer(x: Tensor, residual: Tensor, norm: Tensor, *weights: Tensor) -> Tensor:
    gate, gate_scale, up, up_scale, down, down_scale = weights
    total = x + residual
    y, scale = rounded(rms_norm(total, norm))
    inner = F.silu(_linear(y, scale, gate, gate_scale)) * _linear(y, scale, up, up_scale)
    return total + _linear(*rounded(inner), down, down_scale)


def _linear(x: Tensor, scale: Tensor, weight: Tensor, by: Tensor) -> Tensor:
    return torch._scaled_mm(  # noqa: SLF001 (2.11 has no other)
        x, weight.t(), scale, by.t(), out_dtype=torch.bfloat16, use_fast_accum=True
    )
