"""Linear layers of few rows that read the same: a call of cuBLAS for each, beside one kernel."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay_optimizer.backend import backbay
from backbay_optimizer.kernels import few_row_linears as kernel
from speed.condition_tables.timing import Call, at_least, compared, micros, normal, row

LAYERS = {
    "Llama 1B": (2048, (2048, 512, 512)),
    "Llama 8B": (4096, (4096, 1024, 1024)),
    "Qwen 14B": (5120, (5120, 1024, 1024)),
    "Llama 70B": (8192, (8192, 1024, 1024)),
    "Qwen 0.5B": (896, (896, 128, 128)),
    "1600 wide": (1600, (1600, 1600, 1600)),
    "three alike": (2048, (4096, 4096, 4096)),
    "keys and values": (512, (512, 512)),
}
"""Columns of the input, and of the results."""

GATED = {
    "Llama 1B": (2048, 8192),
    "Llama 8B": (4096, 14336),
    "Llama 70B": (8192, 28672),
    "Qwen 0.5B": (896, 4864),
    "1600 wide": (1600, 4304),
    "4096 wide": (4096, 4096),
}
"""Columns of the input, and of the result."""

CACHE = 512
"""Tokens of a cache."""
HEAD = 64

ROWS = (2, 16, 64, 128, 256, 512)

STEPS = {"Llama 1B": (2048, 512, 8192), "Llama 8B": (4096, 1024, 14336)}
"""Columns, those of keys, and those within."""

SEQUENCES = (16, 128, 256)


def few_rows() -> Iterator[str]:
    """Compare queries, keys and values, and a gate and what it gates."""
    yield row("layers", "rows", "limit", "cuBLAS", "one kernel", "ratio")
    yield f"|{'---|' * 6}"
    for rows in ROWS:
        for name, (inner, sizes) in LAYERS.items():
            x, weights = normal(rows, inner), [_weight(n, inner) for n in sizes]
            biases = [None] * len(sizes)
            calls: tuple[Call, Call] = (
                functools.partial(_linears, x, weights),
                functools.partial(kernel.few_row_linears, x, weights, biases),
            )
            yield _line(f"{name}: {inner} to {', '.join(map(str, sizes))}", rows, weights, calls)
        for name, (inner, columns) in GATED.items():
            x, (gate, up) = normal(rows, inner), [_weight(columns, inner) for _ in range(2)]
            calls = (
                functools.partial(_swiglu, x, gate, up),
                functools.partial(kernel.gated_linears, x, gate, up, None, None, "silu"),
            )
            yield _line(f"{name}: SwiGLU, {inner} to {columns}", rows, (gate, up), calls)


def few_row_steps() -> Iterator[str]:
    """Compare a decoder's layer in a step of generation: without the pass, and with it."""
    yield row("layer, sequences", "limit", "Inductor's", "without", "with", "ratio", "ratio")
    yield f"|{'---|' * 7}"
    without = {"cuda_graphs": False, "few_row_linears": False}
    backends: tuple[Any, ...] = (
        "inductor",
        functools.partial(backbay, options=without),
        functools.partial(backbay, options={"cuda_graphs": False}),
    )
    for sequences, (name, widths) in itertools.product(SEQUENCES, STEPS.items()):
        width, narrow, inner = widths
        sizes = [(width, width), *[(narrow, width)] * 2, (width, width)]
        sizes += [(inner, width)] * 2 + [(width, inner)]
        caches = [normal(sequences, narrow // HEAD, CACHE, HEAD) for _ in range(2)]
        given = [normal(sequences, 1, width), *caches, *(_weight(*x) for x in sizes)]
        limit = at_least(2 * sum(y.numel() for y in given))
        times = []
        for backend in backends:
            torch.compiler.reset()
            step = torch.compile(_layer, backend=backend, dynamic=False)
            with torch.no_grad():
                times.append(micros(functools.partial(step, *given)))
        yield row(f"{name}, {sequences}", limit, *compared(times))


def _layer(x: Tensor, keys: Tensor, values: Tensor, *weights: Tensor) -> Tensor:
    *three, out, gate, up, down = weights
    y = F.rms_norm(x, x.shape[-1:], eps=1e-6)
    q, k, v = (F.linear(y, w).view(len(x), 1, -1, HEAD).transpose(1, 2) for w in three)
    for cache, new in ((keys, k), (values, v)):
        cache[:, :, -1:].copy_(new)
    y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).flatten(2), out)
    y = F.rms_norm(x, x.shape[-1:], eps=1e-6)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def _line(name: str, rows: int, weights: Sequence[Tensor], calls: Sequence[Call]) -> str:
    limit = at_least(2 * sum(w.numel() for w in weights))
    with torch.no_grad():
        return row(name, rows, limit, *compared([micros(y) for y in calls]))


def _weight(columns: int, inner: int) -> Tensor:
    weight: Tensor = normal(columns, inner) * inner**-0.5
    return weight


def _linears(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [F.linear(x, w) for w in weights]


def _swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    y: Tensor = _gated(F.linear(x, gate), F.linear(x, up))  # Inductor calls cuBLAS, too
    return y


@torch.compile(dynamic=True)  # one kernel for all sizes
def _gated(gate: Tensor, up: Tensor) -> Tensor:
    y: Tensor = F.silu(gate) * up
    return y
