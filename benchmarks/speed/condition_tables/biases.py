"""Attention written out with a bias: as Inductor compiles it, or by fused kernels."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from speed.condition_tables.timing import compared, micros, row, trained

SHAPES = (  # sequences, heads, queries, keys, width, and the bias's
    *((n, 12, 512, 512, 64, (1, 12, 512, 512)) for n in (1, 8, 32)),
    (32, 12, 512, 512, 64, (32, 1, 1, 512)),
    (4, 16, 2048, 2048, 64, (1, 16, 2048, 2048)),
    *((n, 12, 128, 128, 64, (1, 12, 128, 128)) for n in (8, 64)),
    (2048, 4, 49, 49, 32, (1, 4, 49, 49)),
    (512, 16, 64, 64, 32, (1, 16, 64, 64)),
    (512, 8, 144, 144, 32, (1, 8, 144, 144)),
    *((64, 12, n, n, 64, (1, 12, n, n)) for n in (196, 197, 257)),
    *((16, 16, n, n, 64, (1, 16, n, n)) for n in (577, 1025)),
    *((16, 12, n, 1024, 64, (1, 12, n, 1024)) for n in (1, 16, 32, 64)),
)
"""Of T5, BERT, ALiBi, Swin (windows of 49, 64 and 144), BEiT (patches of 196 and more, and a class
token), and of a few queries."""
KERNELS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def biases() -> Iterator[str]:
    """Compare attention that is written out with cuDNN's kernel and the memory-efficient one."""
    ways = ("written out", "cuDNN", "efficient", "ratio", "ratio")
    yield row("sequences, heads, queries, keys, width", "bias", "gradients", *ways)
    yield f"|{'---|' * 8}"
    for *shape, bias in SHAPES:
        for gradients in ("none", "but of the bias", "all"):
            if gradients == "none" or shape[2] == shape[3]:
                cells = compared([*times(shape, bias, gradients)])
                yield row(", ".join(map(str, shape)), bias, gradients, *cells)


def times(shape: list[int], bias: tuple[int, ...], gradients: str) -> Iterator[float]:
    """Yield the time written out, and of each kernel; NaN of one that does not take it."""
    batch, heads, queries, keys, width = shape
    inputs = [
        normal(batch, n, heads, width, train=gradients != "none").transpose(1, 2)
        for n in (queries, keys, keys)
    ]
    inputs = [x.detach().requires_grad_(gradients != "none") for x in inputs]
    inputs.append(normal(*bias, train=gradients == "all"))
    with torch.set_grad_enabled(gradients != "none"):
        yield micros(trained(written_out, inputs))
        for kernel in KERNELS:
            try:
                yield micros(trained(functools.partial(fused, kernel), inputs))
            except RuntimeError:  # whatever it says: it does not take it
                yield float("nan")


def normal(*shape: int, train: bool) -> Tensor:
    """Draw a tensor."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_(train)


def written_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend as models without fused attention do."""
    scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[3] ** -0.5 + bias
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)


def fused(kernel: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend by one kernel."""
    with sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
