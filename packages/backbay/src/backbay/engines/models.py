"""The small models that each engine is tried with: it is imported where torch is, by its name."""

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp() -> Made:
    """Return two linear layers with an activation between them."""
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), (torch.randn(4, 64),)


def conv_net() -> Made:
    """Return convolutions with batch norm, a residual addition, pooling and a linear layer."""
    return _ConvNet(), (torch.randn(4, 3, 16, 16),)


def block() -> Made:
    """Return one layer of a transformer, with attention that is fused."""
    return _Block(), (torch.randn(4, 16, 64),)


class _ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.second(x)).relu()
        result: torch.Tensor = self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return result


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(64), nn.LayerNorm(64)])
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.mlp(self.norms[1](x))
        return result
