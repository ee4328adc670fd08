"""The model of the tutorial "Which backend for my model?"."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block that gates its values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x and what was computed of it."""
        gate, value = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(gate * torch.sigmoid(gate) * value)


class Classifier(nn.Module):
    """Sorts sequences of 64 vectors into ten classes."""

    def __init__(self, *, talks: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(128) for _ in range(4))
        self.head = nn.Linear(128, 10)
        self.talks = talks

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class."""
        for number, block in enumerate(self.blocks):
            x = block(x)
            if self.talks:
                print("block", number, "done")
        return self.head(x.mean(1))


def talking() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model as it was first written, and its inputs."""
    return Classifier(talks=True), (torch.randn(32, 64, 128),)


def quiet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model without its prints."""
    return Classifier(talks=False), (torch.randn(32, 64, 128),)
