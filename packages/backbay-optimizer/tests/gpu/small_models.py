"""Models of a few layers that programs with CUDA graphs are made of."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return torch.sin(x + self.down(F.gelu(self.up(self.norm(x)))))


class Images(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x)))).mean((2, 3))
