"""LayerNorm and RMSNorm in training, alone and in blocks of transformers, beside Backbay's."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import backbay
from speed.condition_tables.timing import at_least, compared, micros, normal, row, trained

SHAPES = (
    *((4096, 4096), (2048, 8192), (8192, 4096), (16384, 2048), (4096, 2048)),
    *((4096, 1024), (16384, 1024), (8192, 768), (32768, 768), (200704, 96)),
    *((8192, 1280), (8192, 2560), (4096, 5120), (8192, 1600)),
)
"""Rows and columns."""

LLAMAS = ((1, 4096, 4096, 11008), (1, 2048, 8192, 14336), (2, 4096, 2048, 8192))
"""Sequences, tokens, columns, and columns within."""
GPTS = ((4, 1024, 4096, 16384), (8, 1024, 768, 3072))
"""Likewise."""
BERTS = ((16, 512, 768, 3072),)
"""Likewise."""

_EPS = 1e-6
_HEAD = 64


def row_norms() -> Iterator[str]:
    """Compare norms with their gradients."""
    yield row("rows and columns", "limit", *("LayerNorm", "ours", "ratio", "RMSNorm"), *_OURS)
    yield f"|{'---|' * 8}"
    for rows, columns in SHAPES:
        given = [normal(*x).requires_grad_() for x in ((rows, columns), (columns,), (columns,))]
        cells = [at_least(5 * rows * columns * 2)]
        for norm, inputs in ((layer_norm, given), (rms_norm, given[:2])):
            cells += compared([micros(trained(norm, inputs, x)) for x in ("inductor", backbay)])
        yield row(f"{rows}x{columns}", *cells)


def row_norm_blocks() -> Iterator[str]:
    """Compare blocks with their gradients: without the pass, and with it."""
    yield row("block", "Inductor's", "without", "with", "ratio", "ratio")
    yield f"|{'---|' * 6}"
    backends = ("inductor", *(functools.partial(backbay, options=x) for x in (_WITHOUT, _WITH)))
    for way, shapes, norms, layers in (
        (llama, LLAMAS, 2, 2),
        (gpt, GPTS, 4, 1),
        (bert, BERTS, 4, 1),
    ):
        for shape in shapes:
            inputs = _inputs(*shape, norms, layers)
            times = [micros(trained(way, inputs, x)) for x in backends]
            yield row(f"{way.__name__} {'x'.join(map(str, shape))}", *compared(times))


def _inputs(  # noqa: PLR0917 (a shape's numbers)
    batch: int, tokens: int, columns: int, within: int, vectors: int, wide: int
) -> list[Tensor]:
    sizes = [(columns, columns)] * 4 + [(within, columns)] * wide + [(columns, within)]
    weights = [normal(*x) * x[1] ** -0.5 for x in sizes]
    given = [normal(batch, tokens, columns), *(normal(columns) for _ in range(vectors)), *weights]
    return [x.detach().requires_grad_() for x in given]


_OURS = ("ours", "ratio")
_WITH = {"cuda_graphs": False}
_WITHOUT = {**_WITH, "row_norms": False}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise rows."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, _EPS)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise rows as transformers' Llama does."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)
    return weight * wide.to(x.dtype)


def llama(x: Tensor, *parameters: Tensor) -> Tensor:
    """Compute attention and a SwiGLU, with norms before both."""
    one, other, q, k, v, out, gate, up, down = parameters
    y = rms_norm(x, one)
    h = x + _attention(out, *(F.linear(y, w) for w in (q, k, v)), is_causal=True)
    y = rms_norm(h, other)
    return h + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def gpt(x: Tensor, *parameters: Tensor) -> Tensor:
    """Compute attention and a feed-forward layer, with norms before both."""
    norms, (q, k, v, out, up, down) = parameters[:4], parameters[4:]
    merged = F.linear(layer_norm(x, *norms[:2]), torch.cat((q, k, v)))
    h = x + _attention(out, *torch.split(merged, x.shape[-1], -1), is_causal=True)
    return h + _feed_forward(layer_norm(h, *norms[2:]), up, down)


def bert(x: Tensor, *parameters: Tensor) -> Tensor:
    """Compute attention and a feed-forward layer, with norms behind both."""
    norms, (q, k, v, out, up, down) = parameters[:4], parameters[4:]
    h = x + _attention(out, *(F.linear(x, w) for w in (q, k, v)), is_causal=False)
    h = layer_norm(h, *norms[:2])
    return layer_norm(h + _feed_forward(h, up, down), *norms[2:])


def _feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up), approximate="tanh"), down)


def _attention(out: Tensor, *inputs: Tensor, is_causal: bool) -> Tensor:
    shape = inputs[0].shape
    q, k, v = (x.reshape(*shape[:2], -1, _HEAD).transpose(1, 2) for x in inputs)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return F.linear(y.transpose(1, 2).reshape(shape), out)
