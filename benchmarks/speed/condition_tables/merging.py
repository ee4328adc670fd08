"""Linear layers that read the same, in training: one by one, or merged with copied weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from speed.condition_tables.timing import compared, micros, normal, row, trained

GATES = (  # rows, width, width within
    *((512, 768, 3072), (2048, 768, 2048), (8192, 768, 2048), (2048, 1024, 3072)),
    *((4096, 1024, 3072), *((n, 2048, 8192) for n in (2048, 4096, 8192, 16384))),
    (4096, 4096, 14336),
)
ATTENTIONS = (  # rows, width, width of keys and of values
    *((n, 768, 768) for n in (512, 1024, 2048, 8192, 16384)),
    *((n, 1024, 1024) for n in (2048, 4096)),
    *((n, 2048, 512) for n in (2048, 4096, 8192)),
    *((n, 4096, 1024) for n in (2048, 4096)),
)
WIDTH = 64
"""Of a head."""

Split = Callable[..., tuple[Tensor, ...]]


def merging() -> Iterator[str]:
    """Compare layers one by one with one, forward and backward."""
    yield row("layers", "rows, widths", "apart", "merged", "ratio")
    yield f"|{'---|' * 5}"
    for kind, cases, way in (("gate, up", GATES, gated), ("q, k, v", ATTENTIONS, attention)):
        for rows, width, other in cases:
            sizes = (other, other) if kind == "gate, up" else (width, other, other)
            inputs = [normal(rows, width), *(normal(n, width) * width**-0.5 for n in sizes)]
            inputs = [x.requires_grad_() for x in inputs]
            times = [micros(trained(made, inputs)) for made in (way(apart), way(merged))]
            yield row(kind, f"{rows}, {width}, {other}", *compared(times))


def apart(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Compute layers one by one."""
    return tuple(F.linear(x, w) for w in weights)


def merged(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Compute them as one."""
    return torch.split(F.linear(x, torch.cat(weights)), [len(w) for w in weights], -1)


def gated(layers: Split) -> Callable[..., Tensor]:
    """Return the first half of a SwiGLU."""

    def way(x: Tensor, *weights: Tensor) -> Tensor:
        gate, up = layers(x, *weights)
        return F.silu(gate) * up

    return way


def attention(layers: Split) -> Callable[..., Tensor]:
    """Return causal attention of one sequence."""

    def way(x: Tensor, *weights: Tensor) -> Tensor:
        q, k, v = (y.view(1, len(x), -1, WIDTH).transpose(1, 2) for y in layers(x, *weights))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return way
