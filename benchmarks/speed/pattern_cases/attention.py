"""Attention as models call it: with masks that are made at every call, and with repeated heads."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay_optimizer.kernels.windowed_attention import OPERATOR as WINDOWED
from speed.pattern_cases.program import Make, Pattern, Program, leaf, normal

attention = F.scaled_dot_product_attention


def causal_mask(batch: int, length: int, device: torch.device) -> Tensor:
    """Build a causal mask as transformers does, from positions: (B, 1, S, S)."""
    positions = torch.arange(length, device=device)
    rows = torch.arange(batch, device=device)[:, None, None, None]
    seen = positions[None, None, None, :] <= positions[None, None, :, None]
    return seen & (rows >= 0)


def repeated(x: Tensor, times: int) -> Tensor:
    """Repeat each head of (B, heads, S, D)."""
    batch, heads, length, width = x.shape
    wide = x[:, :, None].expand(batch, heads, times, length, width)
    return wide.reshape(batch, heads * times, length, width)


def masked_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as transformers' decoders do under torch.compile."""
    mask = causal_mask(query.shape[0], query.shape[2], query.device)
    times = query.shape[1] // key.shape[1]
    return attention(query, repeated(key, times), repeated(value, times), attn_mask=mask)


def plain_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Do the same without the mask and the copies."""
    return attention(query, key, value, is_causal=True, enable_gqa=True)


def causal(*, train: bool) -> Make:
    """Return what makes causal attention with grouped queries, 32 heads on 8, 64 wide."""
    draw = leaf if train else normal

    def make(batch: int, length: int, heads: int, shared: int, width: int) -> Program:
        seen = 2 * batch * heads * length * length * width  # the half that is not masked, twice
        return Program(
            function=masked_causal,
            inputs=(
                draw(batch, heads, length, width),
                draw(batch, shared, length, width),
                draw(batch, shared, length, width),
            ),
            alternative=plain_causal,
            flops=int(seen * 3.5) if train else seen,
        )

    return make


def full_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as transformers' encoders do: with a mask that hides nothing."""
    batch, _, length, _ = query.shape
    kept = torch.ones(batch, length, dtype=torch.bool, device=query.device)
    mask = kept[:, None, None, :].expand(batch, 1, length, length)
    return attention(query, key, value, attn_mask=mask)


def unmasked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Do the same without a mask."""
    return attention(query, key, value)


def encoder(batch: int, length: int, heads: int, width: int) -> Program:
    """Make attention of a BERT."""
    return Program(
        function=full_mask,
        inputs=[normal(batch, heads, length, width) for _ in range(3)],
        alternative=unmasked,
        flops=4 * batch * heads * length * length * width,
    )


def windowed(batch: int, length: int, heads: int, width: int, window: int) -> Program:
    """Make attention to the last tokens only."""

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        positions = torch.arange(length, device=query.device)
        back = positions[:, None] - positions[None, :]
        return attention(query, key, value, attn_mask=(back >= 0) & (back < window))

    def alternative(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = WINDOWED(query, key, value, window - 1, 0)
        return result

    return Program(
        function=function,
        inputs=[normal(batch, heads, length, width) for _ in range(3)],
        alternative=alternative,
        flops=4 * batch * heads * length * min(window, length) * width,
    )


def repeated_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with repeated heads, and no mask."""
    times = query.shape[1] // key.shape[1]
    return attention(query, repeated(key, times), repeated(value, times), is_causal=True)


def grouped(batch: int, length: int, heads: int, shared: int, width: int) -> Program:
    """Make attention whose keys and values are repeated for nothing."""
    return Program(
        function=repeated_causal,
        inputs=(
            normal(batch, heads, length, width),
            normal(batch, shared, length, width),
            normal(batch, shared, length, width),
        ),
        alternative=plain_causal,
        flops=2 * batch * heads * length * length * width,
    )


def one_token(batch: int, length: int, heads: int, shared: int, width: int) -> Program:
    """Make a step of generation, with a cache that is full up to a position."""

    def function(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        mask = (torch.arange(length, device=query.device) <= position)[None, None, None]
        times = heads // shared
        return attention(query, repeated(key, times), repeated(value, times), attn_mask=mask)

    def grouped_heads(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        mask = (torch.arange(length, device=query.device) <= position)[None, None, None]
        together = query.view(batch, shared, heads // shared, width)
        return attention(together, key, value, attn_mask=mask).reshape(query.shape)

    return Program(
        function=function,
        inputs=(
            normal(batch, heads, 1, width),
            normal(batch, shared, length, width),
            normal(batch, shared, length, width),
            torch.tensor(length - 2),
        ),
        alternative=grouped_heads,
        flops=4 * batch * heads * length * width,
    )


def written_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend as T5 does: products, a bias for each pair, and a softmax."""
    scores = torch.matmul(query, key.transpose(2, 3))
    scores = scores + bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(weights, value)


def called(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Do the same in one call."""
    return attention(query, key, value, attn_mask=bias, scale=1.0)


def biased(*, train: bool) -> Make:
    """Return what makes attention with a bias that is not trained."""
    draw = leaf if train else normal

    def make(batch: int, length: int, heads: int, width: int) -> Program:
        flops = 4 * batch * heads * length * length * width
        inputs = [draw(batch, heads, length, width, scale=width**-0.25) for _ in range(3)]
        return Program(
            function=written_out,
            inputs=[*inputs, normal(1, heads, length, length)],
            alternative=called,
            flops=int(flops * 3.5) if train else flops,
        )

    return make


_BIASED = {"32x512": (32, 512, 12, 64), "4x2048": (4, 2048, 16, 64), "64x197": (64, 197, 12, 64)}
_CAUSAL = {
    "S512": (16, 512, 32, 8, 64),
    "S2048": (4, 2048, 32, 8, 64),
    "S8192": (1, 8192, 32, 8, 64),
}

ATTENTION = (
    Pattern(
        name="sdpa_hfmask",
        alternative=True,
        make=causal(train=False),
        shapes=_CAUSAL,
        tiny=(1, 16, 4, 2, 8),
    ),
    Pattern(
        name="sdpa_hfmask_train",
        alternative=True,
        make=causal(train=True),
        shapes=_CAUSAL,
        tiny=(1, 16, 4, 2, 8),
        train=True,
    ),
    Pattern(
        name="sdpa_fullmask",
        alternative=True,
        make=encoder,
        shapes={"32x512": (32, 512, 12, 64), "8x2048": (8, 2048, 12, 64)},
        tiny=(2, 16, 2, 8),
    ),
    Pattern(
        name="bias_attention",
        alternative=True,
        make=biased(train=False),
        shapes=_BIASED,
        tiny=(2, 16, 2, 8),
    ),
    Pattern(
        name="bias_attention_train",
        alternative=True,
        make=biased(train=True),
        shapes=_BIASED,
        tiny=(2, 16, 2, 8),
        train=True,
    ),
    Pattern(
        name="sdpa_window",
        alternative=True,
        make=windowed,
        shapes={"S4096": (1, 4096, 16, 64, 512), "S8192": (1, 8192, 16, 64, 1024)},
        tiny=(1, 16, 2, 8, 4),
    ),
    Pattern(
        name="sdpa_repeat_kv",
        alternative=True,
        make=grouped,
        shapes={"S2048": (4, 2048, 32, 8, 64), "S8192": (1, 8192, 32, 8, 64)},
        tiny=(1, 16, 4, 2, 8),
    ),
    Pattern(
        name="sdpa_one_token",
        alternative=True,
        make=one_token,
        shapes={"B1_S4096": (1, 4096, 32, 8, 64), "B16_S2048": (16, 2048, 32, 8, 64)},
        tiny=(1, 16, 4, 2, 8),
    ),
)
