"""A model to race: ``backbay race examples/mlp.py:mlp``."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """The feed-forward half of a transformer's layer, with the squared ReLU as people write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` and what the layer adds to it."""
        lift: Callable[[Tensor], Tensor] = self.up
        hidden = F.relu(lift(x)).square()
        return x + torch.as_tensor(self.down(hidden))


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model and its inputs; device and dtype are the race's to choose."""
    return Mlp(128), (torch.randn(64, 128),)
