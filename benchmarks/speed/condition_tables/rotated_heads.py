"""Queries and keys that are normalised head by head and turned, as Inductor has them, and Backbay.

As Qwen3 writes it.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx
from torch.fx import GraphModule
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import backbay
from speed.condition_tables.row_norms import rms_norm
from speed.condition_tables.timing import at_least, compared, compiled, in_turns, normal, row

SHAPES = (
    *((t, 32, 8, 128) for t in (1, 64, 512, 2048, 8192, 32768)),
    *((2048, 16, 8, 128), (8192, 16, 8, 128), (8192, 40, 8, 128), (8192, 32, 4, 128)),
    *((8192, 16, 2, 128), (8192, 16, 1, 128)),
    *((t, 4, 1, 256) for t in (1, 512, 2048, 8192)),
    *((2048, 8, 4, 256), (8192, 16, 8, 256)),
    *((t, 32, 8, 64) for t in (512, 2048, 8192)),
)
"""Tokens, heads of queries and of keys, and their width."""

LAYERS = (
    *((t, 2048, 16, 8, 128) for t in (1, 512, 2048, 8192)),
    *((t, 4096, 32, 8, 128) for t in (2048, 8192)),
    *((t, 1152, 4, 1, 256) for t in (2048, 8192)),
)
"""Tokens, columns, and as above."""

_WITH = {"cuda_graphs": False}
_WITHOUT = {**_WITH, "rotated_heads": False}


def _combined(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Compile with Inductor, which puts kernels that do not depend on each other into one."""
    return compile_fx(graph_module, example_inputs, config_patches={"combo_kernels": True})


def rotated_heads() -> Iterator[str]:
    """Compare queries and keys, and queries alone."""
    names = ("Inductor's", "combo kernels", "ours", "ratio", "ratio")
    yield row("tokens, heads", "limit", *names, "queries alone", "ours", "ratio")
    yield f"|{'---|' * 10}"
    ours = functools.partial(backbay, options=_WITH)
    backends = ("inductor", _combined, ours)
    for tokens, heads, shared, width in SHAPES:
        given = _inputs(tokens, heads, shared, width)
        moved = 2 * (2 * tokens * (heads + shared) + 2 * tokens) * width
        cells = [at_least(moved)]
        with torch.no_grad():
            cells += compared(in_turns(compiled(both, given, x) for x in backends))
            alone = [given[0], given[2], *given[4:]]
            cells += compared(in_turns(compiled(one, alone, x) for x in ("inductor", ours)))
        yield row(f"{tokens}, {heads} and {shared} of {width}", *cells)


def rotated_heads_layers() -> Iterator[str]:
    """Compare a layer's attention, with the products before it and behind it."""
    yield row("layer", "Inductor's", "without", "with", "ratio", "ratio")
    yield f"|{'---|' * 6}"
    backends = ("inductor", *(functools.partial(backbay, options=x) for x in (_WITHOUT, _WITH)))
    for tokens, columns, heads, shared, width in LAYERS:
        weights = [normal(n * width, columns) * columns**-0.5 for n in (heads, shared, shared)]
        out = normal(columns, heads * width) * (heads * width) ** -0.5
        x, norms = normal(1, tokens, columns), (normal(width), normal(width))
        given = (x, *norms, *weights, out, *_angles(tokens, width))
        with torch.no_grad():
            times = in_turns(compiled(_layer, given, x) for x in backends)
        yield row(f"{tokens}x{columns}, {heads} and {shared} of {width}", *compared(times))


def one(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Normalise heads and turn them."""
    x = rms_norm(x, weight).transpose(1, 2)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def both(  # noqa: PLR0917 (graph inputs)
    q: Tensor, k: Tensor, one_weight: Tensor, other: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Normalise queries and keys, and turn them."""
    return one(q, one_weight, cos, sin), one(k, other, cos, sin)


def _layer(x: Tensor, *parameters: Tensor) -> Tensor:
    norms, (q, k, v, out), angles = parameters[:2], parameters[2:6], parameters[6:]
    width = norms[0].shape[0]
    query, key, value = (F.linear(x, w).view(*x.shape[:-1], -1, width) for w in (q, k, v))
    query, key = both(query, key, *norms, *angles)
    y = F.scaled_dot_product_attention(
        query, key, value.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return F.linear(y.transpose(1, 2).flatten(2), out)


def _inputs(tokens: int, heads: int, shared: int, width: int) -> list[Tensor]:
    heads_of = (normal(1, tokens, n, width) for n in (heads, shared))
    return [*heads_of, normal(width), normal(width), *_angles(tokens, width)]


def _angles(tokens: int, width: int) -> list[Tensor]:
    angles = normal(1, 1, tokens, width)
    return [angles.cos(), angles.sin()]
