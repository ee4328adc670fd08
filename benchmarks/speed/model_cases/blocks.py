"""Two more kinds of model, in plain torch: a diffusion UNet's block, and a recommender."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from backbay.proof import Workload
from backbay.workloads.randomise import randomise
from speed.model_cases.case import DTYPE, Case


class Residual(nn.Module):
    """Two convolutions, each after GroupNorm and SiLU, with the time step added in between."""

    def __init__(self, channels: int, embedding: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in "ab")
        self.time = nn.Linear(embedding, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        y = self.convolutions[0](F.silu(self.norms[0](x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.convolutions[1](F.silu(self.norms[1](y)))
        total: Tensor = x + y
        return total


class Attending(nn.Module):
    """Attention of queries to keys that may come from elsewhere."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context, width, bias=False)
        self.value = nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """(B, N, width) and (B, M, context) to (B, N, width)."""
        parts = (self.query(x), self.key(context), self.value(context))
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in parts)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Transforming(nn.Module):
    """Self-attention, attention to the prompt, and a gated feed-forward network, on pixels."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.group = nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = Attending(width, width, heads)
        self.prompt = Attending(width, context, heads)
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        side = x.shape[-2:]
        y = self.group(x).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.own(z, z)
        y = y + self.prompt(self.norms[1](y), context)
        value, gate = self.up(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        total: Tensor = x + y.transpose(1, 2).unflatten(-1, side)
        return total


class Down(nn.Module):
    """A level of a diffusion UNet: twice residual block and transformer, then half the side."""

    def __init__(self, channels: int, embedding: int, context: int, heads: int) -> None:
        super().__init__()
        self.residuals = nn.ModuleList(Residual(channels, embedding) for _ in range(2))
        self.transformers = nn.ModuleList(Transforming(channels, context, heads) for _ in range(2))
        self.halve = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """(B, C, H, W) to (B, 2C, H/2, W/2)."""
        for residual, transformer in zip(self.residuals, self.transformers, strict=True):
            x = transformer(residual(x, time), context)
        halved: Tensor = self.halve(x)
        return halved


@dataclass(frozen=True, kw_only=True)
class _Unet:
    batch: int
    channels: int
    side: int
    heads: int
    words: int = 77
    context: int = 768
    embedding: int = 1280


_UNETS = {
    "full": _Unet(batch=8, channels=320, side=64, heads=8),
    "proof": _Unet(batch=1, channels=320, side=32, heads=8),
    "tiny": _Unet(batch=1, channels=32, side=8, heads=2, words=5, context=16, embedding=16),
}


def unet(size: str) -> Workload:
    """Build the block at the sizes of a latent diffusion model's first level."""
    s = _UNETS[size]
    model = Down(s.channels, s.embedding, s.context, s.heads).to(DTYPE)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    randomise(model)
    x = torch.randn(s.batch, s.channels, s.side, s.side, dtype=DTYPE)
    time = torch.randn(s.batch, s.embedding, dtype=DTYPE)
    context = torch.randn(s.batch, s.words, s.context, dtype=DTYPE)
    return Workload(model=model, args=(x.to(memory_format=torch.channels_last), time, context))


class Block(nn.Module):
    """A residual block of a latent diffusion model's decoder: as above, and no time step."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        sizes = ((inputs, outputs), (outputs, outputs))
        self.norms = nn.ModuleList(nn.GroupNorm(32, n, eps=1e-6) for n, _ in sizes)
        self.convolutions = nn.ModuleList(nn.Conv2d(*n, 3, padding=1) for n in sizes)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(F.silu(norm(y)))
        total: Tensor = self.shortcut(x) + y
        return total


class Pixels(nn.Module):
    """Attention of every pixel to every other, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.attend = Attending(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        y = self.norm(x).flatten(2).transpose(1, 2)
        total: Tensor = x + self.attend(y, y).transpose(1, 2).reshape(x.shape)
        return total


class Decoder(nn.Module):
    """The decoder of a latent diffusion model's autoencoder: latents to images of 8 times the side.

    The structure is that of Rombach et al., High-Resolution Image Synthesis with Latent Diffusion
    Models, 2021 (arXiv 2112.10752), with the widths of Stable Diffusion's.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.begin = nn.Conv2d(4, first, 3, padding=1)
        self.middle = nn.Sequential(Block(first, first), Pixels(first), Block(first, first))
        levels: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((first, *widths)):
            levels += [Block(inputs, outputs), Block(outputs, outputs), Block(outputs, outputs)]
            if len(levels) < 4 * len(widths) - 1:
                larger = nn.Upsample(scale_factor=2, mode="nearest")
                levels.append(nn.Sequential(larger, nn.Conv2d(outputs, outputs, 3, padding=1)))
        self.levels = nn.Sequential(*levels)
        self.norm = nn.GroupNorm(32, last, eps=1e-6)
        self.end = nn.Conv2d(last, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4, H, W) to (B, 3, 8H, 8W)."""
        y = self.levels(self.middle(self.begin(x)))
        image: Tensor = self.end(F.silu(self.norm(y)))
        return image


_DECODERS = {
    "full": (4, 64, (512, 512, 256, 128)),
    "proof": (1, 16, (512, 512, 256, 128)),
    "tiny": (1, 4, (32, 32)),
}


def latents(size: str, *, train: bool) -> tuple[int, int, int, int]:
    """Return the shape of the decoder's inputs."""
    batch, side, _ = _DECODERS[size]
    return (batch, 4, *(2 * (side // 2 if train and size == "full" else side,)))


def decoder(size: str, *, last: bool, train: bool) -> Workload:
    """Build the decoder; ``last`` is whether channels are last in memory."""
    widths = _DECODERS[size][2]
    form = torch.channels_last if last else torch.contiguous_format
    model = Decoder(widths).to(DTYPE).to(memory_format=form)  # type: ignore[call-overload]
    randomise(model)
    x = torch.randn(latents(size, train=train), dtype=DTYPE).to(memory_format=form)
    return Workload(model=model, args=(x,))


def residual(size: str, *, last: bool) -> Workload:
    """Build one block of it, which is trained."""
    batch, channels, side = _RESIDUALS[size]
    form = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(Block(channels, channels), Block(channels, channels)).to(DTYPE)
    model = model.to(memory_format=form)  # type: ignore[call-overload]
    randomise(model)
    x = torch.randn(batch, channels, side, side, dtype=DTYPE).to(memory_format=form)
    return Workload(model=model, args=(x,))


_RESIDUALS = {"full": (4, 256, 256), "proof": (1, 256, 32), "tiny": (1, 32, 4)}


class Recommender(nn.Module):
    """Embedding bags, dot products of all pairs, and two multi-layer perceptrons (DLRM)."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron(13, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = _perceptron(width + pairs, 512, 256, 1)
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """(B, 13) numbers and (B, tables) rows to (B,) scores."""
        x = self.bottom(dense)
        found = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *found], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        score: Tensor = self.top(torch.cat([x, chosen], dim=1))
        return score.squeeze(1)


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Clicks:
    """Binary cross-entropy with labels, in float32."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the mean loss."""
        return F.binary_cross_entropy_with_logits(scores.float(), self.labels)


_DLRM = {"full": (8192, 26, 100_000, 64), "proof": (512, 26, 20_000, 64), "tiny": (8, 3, 20, 8)}


def dlrm(size: str, *, train: bool) -> Workload:
    """Build the recommender and uniform rows."""
    batch, tables, rows, width = _DLRM[size]
    model = Recommender(tables, rows, width).to(DTYPE)
    randomise(model)
    dense = torch.randn(batch, 13, dtype=DTYPE)
    sparse = torch.randint(rows, (batch, tables))
    loss = Clicks(torch.randint(2, (batch,)).float()) if train else None
    return Workload(model=model, args=(dense, sparse), loss=loss)


BLOCKS = (
    *(
        Case(
            name=f"vae_decoder_{name}.{'train' if train else 'infer'}",
            train=train,
            build=lambda size, last=last, train=train: decoder(size, last=last, train=train),  # type: ignore[misc]
            shapes={x: f"{'x'.join(map(str, latents(x, train=train)))} latents" for x in _DECODERS},
        )
        for name, last in (("nchw", False), ("nhwc", True))
        for train in (False, True)
    ),
    *(
        Case(
            name=f"vae_block_{name}.train",
            train=True,
            build=lambda size, last=last: residual(size, last=last),  # type: ignore[misc]
            shapes={x: f"{s[0]}x{s[1]}x{s[2]}x{s[2]}" for x, s in _RESIDUALS.items()},
        )
        for name, last in (("nchw", False), ("nhwc", True))
    ),
    Case(
        name="unet_block.infer",
        train=False,
        build=unet,
        shapes={x: f"{s.batch}x{s.channels}x{s.side}x{s.side}" for x, s in _UNETS.items()},
        control=True,
    ),
    *(
        Case(
            name=f"dlrm.{'train' if train else 'infer'}",
            train=train,
            build=lambda size, train=train: dlrm(size, train=train),  # type: ignore[misc]
            shapes={x: f"B{s[0]}, {s[1]} tables of {s[2]}x{s[3]}" for x, s in _DLRM.items()},
            control=True,
        )
        for train in (False, True)
    ),
)
