"""Workloads that break, recompile, raise: loaded by reference, and found by their own lines."""

import torch


class Broken(torch.nn.Module):
    """Breaks twice: at a print, and at a branch on data."""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(6, 8)

    def forward(self, x):
        h = self.lift(x) - 1
        print("hello from the model")
        if h.sum() > 0:
            h = h * 2
        return h + 1


class Looped(torch.nn.Module):
    """Breaks inside a loop: the whole function runs eagerly."""

    def forward(self, x):
        for _ in range(2):
            x = torch.relu(x)
            print("in the loop")
        return x


class Counting(torch.nn.Module):
    """Guards on a Python number that it changes at every call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Gated(torch.nn.Module):
    """Spells SiLU out: of the floats, and of what is no float."""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(6, 8)

    def forward(self, x, whole):
        h = self.lift(x)
        gated = h * h.sigmoid()
        return gated, whole * whole.sigmoid()


class Fixed(torch.nn.Module):
    """Takes a batch of four, and no other."""

    def forward(self, x):
        return x.view(4, 6) + 1


class Raising(torch.nn.Module):
    """Raises."""

    def forward(self, x):
        return x.view(7) + 1


def _args():
    return (torch.randn(4, 6),)


def broken():
    return Broken(), _args()


def looped():
    return Looped(), _args()


def counting():
    return Counting(), _args()


def gated():
    return Gated(), (torch.randn(4, 6), torch.ones(4, 8, dtype=torch.int64))


def fixed():
    return Fixed(), _args()


def raising():
    return Raising(), _args()
