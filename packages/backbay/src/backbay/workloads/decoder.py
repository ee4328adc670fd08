"""The default workload: a Llama-style decoder in plain torch, so that a race needs nothing else.

What language models are made of today: RMSNorm, rotary embedding, grouped-query causal attention,
SwiGLU, tied head. The angles of the rotary embedding are computed in float32 in every forward pass:
kept in a buffer, they would lose their low bits when the model is cast.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from backbay.workloads.batches import reduced_batch
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import Reference
from backbay.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    """Heads of keys and values; each serves ``heads // kv_heads`` heads of queries."""

    hidden: int
    """Width inside the feed-forward network."""

    tied: bool = True
    """Whether the head's weight is the embedding's."""

    theta: float = 10000.0
    """Base of the rotary embedding's wavelengths."""

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads


class RMSNorm(torch.nn.Module):
    """Scale to a root mean square of one, computed in float32, then by a learnt weight."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension; shape and dtype stay."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class Attention(torch.nn.Module):
    """Causal self-attention with fewer heads of keys and values than of queries."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        shared = config.kv_heads * config.head_width
        self.query = torch.nn.Linear(config.width, config.width, bias=False)
        self.key = torch.nn.Linear(config.width, shared, bias=False)
        self.value = torch.nn.Linear(config.width, shared, bias=False)
        self.out = torch.nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attend from each position to itself and those before it: (B, T, width) to the same."""
        query = rotate(self._heads(self.query(x)), cos, sin)
        key = rotate(self._heads(self.key(x)), cos, sin)
        value = self._heads(self.value(x))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_width).transpose(1, 2)


class FeedForward(torch.nn.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(config.width, config.hidden, bias=False)
        self.up = torch.nn.Linear(config.width, config.hidden, bias=False)
        self.down = torch.nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform each position by itself; the shape stays."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(torch.nn.Module):
    """Attention and feed-forward network, each after a norm and around a residual."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """One layer: (B, T, width) to the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Decoder(torch.nn.Module):
    """Tokens to logits, or to the loss of predicting ``targets``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = torch.nn.Embedding(config.vocabulary, config.width)
        self.blocks = torch.nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = torch.nn.Linear(config.width, config.vocabulary, bias=False)
        torch.nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Predict the token after each position.

        Args:
            tokens: (B, T), int64.
            targets: (B, T), int64, the tokens to predict.

        Returns:
            The logits, (B, T, vocabulary) in the model's dtype; with targets, the mean
            cross-entropy, a float32 scalar.
        """
        x = self.embedding(tokens)
        cos, sin = rotary_angles(self.config, tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: torch.Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def rotary_angles(
    config: DecoderConfig, length: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine for each position: two of (length, head_width) in ``like``'s dtype."""
    half = torch.arange(0, config.head_width, 2, device=like.device, dtype=torch.float32)
    frequency = config.theta ** (-half / config.head_width)
    position = torch.arange(length, device=like.device, dtype=torch.float32)
    angle = torch.outer(position, frequency).repeat(1, 2)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + head_width / 2) of (B, heads, T, head_width) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@dataclass(frozen=True, kw_only=True)
class _DecoderSize:
    config: DecoderConfig
    batch: int
    length: int


_SIZES = {
    "tiny": _DecoderSize(
        config=DecoderConfig(vocabulary=2048, width=256, layers=2, heads=8, kv_heads=2, hidden=704),
        batch=2,
        length=128,
    ),
    "small": _DecoderSize(
        config=DecoderConfig(
            vocabulary=8192, width=512, layers=4, heads=8, kv_heads=4, hidden=1408
        ),
        batch=2,
        length=256,
    ),
    "base": _DecoderSize(
        config=DecoderConfig(
            vocabulary=32000, width=2048, layers=4, heads=32, kv_heads=8, hidden=8192
        ),
        batch=4,
        length=2048,
    ),
}


def build_decoder(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Build the decoder and random tokens; in training targets too, so that it gives its loss.

    At ``base`` it is a 1-billion-parameter model's width and four of its layers.
    """
    sizes = _SIZES[reference.size_on(device.type)]
    shape = (sizes.batch, sizes.length)
    with device:
        model = Decoder(sizes.config).to(dtype=dtype).train(train)
        randomise(model)
        tokens = torch.randint(sizes.config.vocabulary, shape)
        targets = torch.randint(sizes.config.vocabulary, shape)
    workload = Workload(
        model=model,
        args=(tokens, targets) if train else (tokens,),
        loss=returned_loss if train else None,
        name=reference.canonical(device.type),
    )
    return reduced_batch(workload, sizes.batch)


def returned_loss(output: torch.Tensor) -> torch.Tensor:
    """Return a model's output that is its loss already."""
    return output
